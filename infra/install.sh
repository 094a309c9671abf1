#!/bin/sh
# Installs the project into VENV (made from PYTHON if missing) with the versions of CONSTRAINTS.
#   PYTHON=python3 VENV=.venv CONSTRAINTS=constraints.txt TORCH=2.13.0 sh infra/install.sh '.[dev]'
# The words are what pip installs: the project itself (editable) with or without extras, or a wheel.
set -eu
PYTHON=${PYTHON:-python3} VENV=${VENV:-.venv} CONSTRAINTS=${CONSTRAINTS:-constraints.txt}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

stop() {
  printf 'longrow: %s\n' "$*" >&2
  exit 2
}

if [ ! -x "$VENV/bin/python" ]; then
  found=$("$PYTHON" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) ||
    stop "'$PYTHON' does not start. Install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv), or name yours: make demo PYTHON=/path/to/python3"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    stop "'$PYTHON' is Python $found, and 3.11 or newer is wanted. Name a newer one: make demo PYTHON=python3.12"
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    stop "'$PYTHON' (Python $found) cannot make virtual environments. Debian, Ubuntu: apt-get install python3-venv"
  "$PYTHON" -m venv "$VENV"
fi

# The constraints with another torch, or with none: then whatever torch >= 2.9 stands in VENV stays.
wanted=$VENV/constraints.txt
torch=${TORCH:-}
case $torch in
  '') cp "$CONSTRAINTS" "$wanted" ;;
  any) grep -v '^torch==' "$CONSTRAINTS" >"$wanted" ;;
  *) sed "s/^torch==.*/torch==$torch/" "$CONSTRAINTS" >"$wanted" ;;
esac

quiet=-qq
[ -t 1 ] && quiet=
echo "longrow: installing into $VENV. Once, a minute or more: torch, Ray and MLflow are large."
case $1 in
  *.whl) "$VENV/bin/python" -m pip install $quiet -c "$wanted" "$1" ;;
  *) # the build tool first, by the same constraints: pip alone would fetch its newest, each time
    "$VENV/bin/python" -m pip install $quiet -c "$wanted" hatchling editables
    "$VENV/bin/python" -m pip install $quiet -c "$wanted" --no-build-isolation -e "$1"
    ;;
esac
