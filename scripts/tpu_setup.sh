#!/usr/bin/env bash
# A TPU host from nothing to the first step: the wheel with libtpu, checks, one product on a chip.
# scripts/tpu_setup.sh [--from WHEEL_OR_FOLDER] [--check-only]     run it on every host:
#   gcloud compute tpus tpu-vm ssh NAME --worker=all --command "$(cat scripts/tpu_setup.sh)"
# The environment is made in ~/torch-xdist, or where XDIST_VENV says.
set -euo pipefail

VENV=${XDIST_VENV:-$HOME/torch-xdist}
SOURCE=torch-xdist
CHECK_ONLY=
while [ $# -gt 0 ]; do
  case "$1" in
    --from)
      [ $# -gt 1 ] || { echo "tpu_setup: --from: a wheel or a folder is needed" >&2; exit 2; }
      SOURCE=$2
      shift 2
      ;;
    --check-only) CHECK_ONLY=1; shift ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]:-$0}"; exit 0 ;;
    *) echo "tpu_setup: unknown option $1; --from WHEEL_OR_FOLDER and --check-only are known" >&2; exit 2 ;;
  esac
done

stop() {
  echo "tpu_setup: $*" >&2
  exit 1
}

# 1. Chips: Google's PCI devices, which show up as /dev/accel* or /dev/vfio/N.
count() {
  { find "$1" -maxdepth 1 -name "$2" 2> /dev/null || true; } | wc -l
}
CHIPS=$(count /dev 'accel[0-9]*')
[ "$CHIPS" -gt 0 ] || CHIPS=$(count /dev/vfio '[0-9]*')
echo "tpu_setup: $CHIPS TPU chips at $(hostname)"

# 2. Python and the package.
if [ -z "$CHECK_ONLY" ]; then
  if [ ! -x "$VENV/bin/python" ]; then
    for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
      if [ -n "$name" ] && command -v "$name" > /dev/null \
        && "$name" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))'; then
        PYTHON=$name
        break
      fi
      PYTHON=
    done
    [ -n "$PYTHON" ] || stop "no Python 3.11 or newer on PATH; install one, or name it in PYTHON"
    "$PYTHON" -m venv "$VENV" || stop "python -m venv $VENV failed; on Debian, install python3-venv"
  fi
  # torch's CPU build is enough, and spares the download of CUDA: name its index in PIP_INDEX_URL.
  "$VENV/bin/python" -m pip install --quiet torch \
    || stop "pip could not install torch; is a package index reachable from this host?"
  "$VENV/bin/python" -m pip install --quiet "$SOURCE[tpu]" || stop "pip could not install $SOURCE[tpu]"
fi
[ -x "$VENV/bin/python" ] || stop "there is no $VENV/bin/python; run without --check-only first"

# 3. What would keep libtpu from its start: who has the chips, a file that is left, unfit releases.
"$VENV/bin/python" - "$CHIPS" << 'CHECK' || exit 1
import sys
from torch_xdist.system import tpu_host
has_chips = int(sys.argv[1]) > 0
troubles = [*filter(None, [tpu_host.why_unfit(), has_chips and tpu_host.why_busy()])]
for why in troubles:
    print(f"tpu_setup: {why}", file=sys.stderr)
sys.exit(bool(troubles))
CHECK
echo "tpu_setup: jax, jaxlib and libtpu go together, and nobody else has a chip"

# 4. The first step, on one chip of this host alone.
[ "$CHIPS" -gt 0 ] || { echo "tpu_setup: no chip, so no step was tried"; exit 0; }
PJRT_DEVICE=TPU TPU_PROCESS_BOUNDS=1,1,1 TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 TPU_VISIBLE_CHIPS=0 \
  "$VENV/bin/python" - << 'STEP' || stop "the first step failed; its own words stand above"
import torch
import torch_xla.core.xla_model as xm
x = torch.ones(256, 256, device="xla")
assert (x @ x).sum().item() == 256.0**3, "a product is wrong"
print(f"tpu_setup: a product of 256 x 256 is right on {xm.xla_device_kind()}")
STEP
