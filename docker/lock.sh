#!/usr/bin/env bash
# make lock: pins the packages of pyproject.toml, with hashes, in requirements*.txt. The versions stay as they are where
# pyproject.toml allows it; UPGRADE=1 takes the newest. It needs uv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=${UV:-uv}

# Arguments: the file, what it is for, the oldest Python, the extra (or "group" and the name of a dependency group); then
# files whose packages are installed before it.
lock() {
  local file=$1 what=$2 python=$3 extra=$4 before name made from
  if [[ $extra == 'group '* ]]; then from=(--group "pyproject.toml:${extra#group }"); else from=(--extra "$extra" pyproject.toml); fi
  shift 4
  local more=()
  # All files have the same versions, except where another tool needs older ones.
  case $file in
    requirements.txt | requirements-tables.txt | requirements-networks.txt | requirements-related.txt | requirements-forecasts.txt) ;;
    *) more=(-c requirements.txt) ;;
  esac
  for before; do
    while read -r name; do
      more+=(--no-emit-package "$name")
    done < <(sed -n 's/^\([a-z0-9-]*\)==.*/\1/p' "$before" | sort -u)
  done
  made=$(mktemp)
  touch "$file" # it may be new
  [[ -n ${UPGRADE:-} ]] || cat requirements.txt "$file" >"$made" # uv keeps the versions of the file that it writes
  # Settings of this machine, such as another index, have no influence on the result.
  "$uv" pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-config --no-emit-index-url \
    --python-version "$python" "${more[@]}" --output-file "$made" "${from[@]}"
  # Python 3.11 of Ubuntu 22.04 is 3.11.0rc1, of which neither < 3.11 nor >= 3.11 is true: the minor version decides.
  {
    printf '# %s. make lock writes this file.\n' "$what"
    sed "/^#/d; s/python_full_version \([<>=]*\) \('3[.][0-9]*'\)/python_version \1 \2/g" "$made"
  } >"$file"
  rm "$made"
}

lock requirements.txt "The trainer's environment, for Python 3.10 to 3.13" 3.10 trainer
lock requirements-jax.txt "The trainer's environment without TensorFlow, for Python 3.10 to 3.14" 3.10 trainer-jax
lock requirements-gpu.txt "The trainer's environment with builds for NVIDIA GPUs, for Python 3.11 to 3.13" 3.11 trainer-gpu
lock requirements-dev.txt "The tests and linters, on top of requirements.txt or requirements-jax.txt" 3.11 dev requirements-jax.txt
lock requirements-bench.txt "Other tools for make bench, on top of requirements.txt and requirements-dev.txt" 3.11 bench \
  requirements.txt requirements-dev.txt
lock requirements-site.txt "The environment of make site" 3.11 "group site"
lock requirements-tables.txt "Other tools for make bench WORKS=tables, in an environment of their own" 3.11 "group tables"
lock requirements-networks.txt "RealMLP and TabM for make bench WORKS=tables, in an environment of their own" 3.11 "group networks"
lock requirements-related.txt "Other tools for make bench WORKS=related, in an environment of their own" 3.11 "group related"
lock requirements-forecasts.txt "Other tools for make bench WORKS=forecasts, in an environment of their own" 3.11 "group forecasts"
