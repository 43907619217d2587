#!/usr/bin/env bash
# Installs an unmodified sglang that serves small models on a CPU, for tests/integration/test_sglang.py:
#   tests/sglang_cpu/install.sh DIR            a new virtual environment in DIR (about a minute, 2.7 GB)
#   DRMAS_ENGINE_PYTHON=DIR/bin/python python -m pytest -m sglang
# The stand-ins in shims/ are installed as well, so that engine.python=DIR/bin/python is all an engine needs.
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
target=$1
recipe=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"${PYTHON:-python3}" -m venv "$target"
pip=("$target/bin/python" -m pip install --quiet)
# torch comes first and with an upper bound of its own: nothing later may replace a CPU build by a CUDA one
"${pip[@]}" "torch==2.13.0"
"${pip[@]}" --requirement "$recipe/requirements.txt" "torch==2.13.0"
"${pip[@]}" --no-deps "sglang==0.5.21" "torchvision==0.28.0"
# stand-ins for compiled kernels, built in a copy since building leaves files behind, and a path file that starts them in every
# process of the environment, workers included
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$recipe/shims/." "$copy"
"${pip[@]}" --no-deps "$copy"
site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import drmas_sglang_cpu" > "$site/drmas_sglang_cpu.pth"
"$target/bin/python" -c 'import sglang; print("sglang", sglang.__version__, "is installed")'
