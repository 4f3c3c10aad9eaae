# Sourced by the scripts beside it: makes .venv with what one extra of pyproject.toml needs.
# Idempotent: a stamp in .venv holds the hash of what was installed, and nothing is done when it matches.

case "${1:-}" in
  -h | --help)
    # The comment at the caller's top.
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV=.venv
export PIP_DISABLE_PIP_VERSION_CHECK=1

stop() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

find_python() {
  local name
  for name in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$name" ] && command -v "$name" > /dev/null \
      && "$name" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))'; then
      echo "$name"
      return
    fi
  done
  stop "no Python 3.11 or newer was found on PATH; install one, or name it in PYTHON"
}

stamp_of() {
  { echo "extra=$1"; cat pyproject.toml constraints.txt; } | sha256sum | cut -d' ' -f1
}

installed() {
  # Everything `examples` needs is part of `dev`.
  local extra
  for extra in "$1" dev; do
    [ "$(cat "$VENV/.installed-$extra" 2> /dev/null)" = "$(stamp_of "$extra")" ] && return 0
  done
  return 1
}

# prepare EXTRA: afterwards $VENV/bin/python runs the project with that extra.
prepare() {
  local extra=$1 python
  if installed "$extra"; then
    echo "environment: $VENV is up to date"
    return
  fi
  if [ ! -x "$VENV/bin/python" ]; then
    python=$(find_python) || exit 1
    echo "environment: creating $VENV with $("$python" --version)"
    "$python" -m venv "$VENV" || stop "python -m venv $VENV failed; on Debian, install python3-venv"
  fi
  # torch comes first and alone: no other requirement may then draw a different build of it.
  echo "environment: installing $(grep '^torch==' constraints.txt) (the first time this takes minutes)"
  "$VENV/bin/python" -m pip install --quiet "$(grep '^torch==' constraints.txt)" \
    || stop "pip could not install torch; is a package index reachable from this machine?"
  echo "environment: installing torch-xdist[$extra] with the pins of constraints.txt"
  "$VENV/bin/python" -m pip install --quiet -c constraints.txt -e ".[$extra]" \
    || stop "pip could not install torch-xdist[$extra]; its own message stands above"
  stamp_of "$extra" > "$VENV/.installed-$extra"
}
