#!/bin/sh
# What `make test-services` needs of Debian: a browser and a PostgreSQL. Installs them as root, and
# says what to install as anybody else.
set -eu

missing=
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="$missing chromium"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
  echo "longrow: missing:$missing. Install them first: sudo apt-get install$missing" >&2
  exit 2
fi
echo "longrow: installing Debian's$missing."
apt-get update -qq
# No cluster of Debian's own: the test makes one in a temp folder.
mkdir -p /etc/postgresql-common/createcluster.d
echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.d/longrow.conf
# shellcheck disable=SC2086 # several words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
