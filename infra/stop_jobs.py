"""Stop the jobs of the Ray on this node and wait for their checkpoints; run before it goes down.

A node that ends takes its drivers along, and a driver that is killed writes nothing. So containers
run this first (compose's pre_stop, Kubernetes' preStop): each driver gets SIGTERM, as by `ray job
stop`, and its run ends with a checkpoint. The grace period of whoever ends the node must be above
RAY_JOB_STOP_WAIT_TIME_S, the time that Ray leaves a driver.
"""

import os
import sys
import time

from ray.job_submission import JobSubmissionClient

DASHBOARD = os.environ.get("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:8265")
WAIT_S = float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", "3")) + 10.0


def main() -> int:
    """Ask all running jobs to stop; 0 when none is left, 1 when time is up first."""
    os.environ["RAY_API_SERVER_ADDRESS"] = DASHBOARD  # else Ray goes by RAY_ADDRESS, if there
    client = JobSubmissionClient(DASHBOARD)
    jobs = [job.submission_id for job in client.list_jobs() if job.submission_id]
    running = [name for name in jobs if not client.get_job_status(name).is_terminal()]
    for name in running:
        client.stop_job(name)
    end = time.monotonic() + WAIT_S
    while running and time.monotonic() < end:
        time.sleep(0.5)
        running = [name for name in running if not client.get_job_status(name).is_terminal()]
    print(f"longrow: {len(running)} jobs still run." if running else "longrow: no job runs.")
    return int(bool(running))


if __name__ == "__main__":
    sys.exit(main())
