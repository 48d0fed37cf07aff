#!/usr/bin/env bash
# Installs what cerebro_db needs on Debian or Ubuntu: missing system packages and the pinned Python environment.
# The demo, the tests and the image use it. It is quick when nothing is missing.
#
#   docker/install.sh [--dev] [--gpu | --jax-only | --tensorflow] [--no-link] [--environment-only]
#
# --dev      also installs what the tests and linters need
# --gpu      installs builds of TensorFlow and JAX for NVIDIA GPUs, now and whenever this environment is brought up to date
# --jax-only  installs JAX without TensorFlow, now and whenever this environment is brought up to date
# --tensorflow  installs the usual set again, after --gpu or --jax-only: TensorFlow and JAX for processors
# --no-link  makes no link .venv in the clone (for an image)
# --environment-only  makes the Python environment, and installs neither system packages nor this code
# Environment: CEREBRO_HOME (the folder of the environment), PG_CONFIG or GPHOME (a server that is there already),
# CEREBRO_PYTHON (an interpreter), and CEREBRO_TENSORFLOW (another build of TensorFlow, for example tensorflow==2.21.0)
set -euo pipefail
umask 022

clone=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
say() { printf 'cerebro_db: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

sets=(requirements.txt)
link=yes
build=
only=no
for argument; do
  case $argument in
    --dev) sets+=(requirements-dev.txt) ;;
    --gpu | --jax-only | --tensorflow)
      [[ -z $build || $build == "${argument#--}" ]] || die "--$build and $argument exclude each other"
      build=${argument#--}
      ;;
    --no-link) link=no ;;
    --environment-only) only=yes ;;
    *) die "unknown argument $argument" ;;
  esac
done

if [[ -n ${CEREBRO_HOME:-} ]]; then
  home=$CEREBRO_HOME
elif [[ $EUID == 0 ]]; then
  home=/var/lib/cerebro
else
  home=${XDG_DATA_HOME:-$HOME/.local/share}/cerebro
fi
mkdir -p "$home" 2>/dev/null && [[ -w $home ]] || die "cannot write to $home; set CEREBRO_HOME to another place"
home=$(cd "$home" && pwd)
venv=$home/venv

# Later calls without an argument keep what was chosen. The files are not in $venv, which may be made anew.
for one in gpu jax-only; do
  [[ -n $build || ! -e $home/.$one ]] || build=$one
done
other=${CEREBRO_TENSORFLOW:-}
[[ -z $other || -z $build || $build == tensorflow ]] ||
  die "CEREBRO_TENSORFLOW and --$build exclude each other: unset it, or call docker/install.sh --tensorflow"
[[ $build != gpu || $(uname -m) == x86_64 ]] || die "the pinned builds for GPUs are for x86-64 only (docs/install.md#gpus)"

# The minor versions of Python 3 for which there are wheels of all packages.
oldest=10
newest=14
[[ $build != gpu && ${#sets[@]} == 1 ]] || oldest=11 # with the tests' packages, too
[[ $build != tensorflow && $build != gpu && -z $other ]] || newest=13 # the newest with TensorFlow

# --- packages ------------------------------------------------------------------------------------------

missing=()
needs_python="this environment${build:+ (--$build)} needs Python 3.$oldest to 3.$newest"

has_server_with_plpython() {
  local config share
  # GPHOME is set where greenplum_path.sh was read.
  for config in ${PG_CONFIG:+"$PG_CONFIG"} ${GPHOME:+"$GPHOME/bin/pg_config"} \
    /usr/lib/postgresql/*/bin/pg_config /usr/pgsql-*/bin/pg_config; do
    share=$("$config" --sharedir 2>/dev/null) || continue
    [[ -x $("$config" --bindir)/postgres && -e $share/extension/plpython3u.control ]] && return 0
    [[ -n ${PG_CONFIG:-} ]] && return 1 # PG_CONFIG allows no other installation
  done
  return 1
}

newest_server() {
  local postgres
  for postgres in /usr/lib/postgresql/*/bin/postgres; do
    if [[ -x $postgres ]]; then cut -d/ -f5 <<<"$postgres"; fi
  done | sort -n | tail -1
}

# Whether an interpreter is of a version up to the given one, and not too old.
is_up_to() {
  "$2" -c 'import sys; sys.exit(not int(sys.argv[1]) <= sys.version_info[1] <= int(sys.argv[2]))' "$oldest" "$1" 2>/dev/null
}

# The interpreter of the trainer's environment, if possible one that TensorFlow has wheels for.
find_python() {
  local version python candidates=(/usr/bin/python3 python3.13 python3.12 python3.11 python3.10 python3.14 python3)
  [[ -z ${CEREBRO_PYTHON:-} ]] || candidates=("$CEREBRO_PYTHON")
  for version in 13 "$newest"; do
    for python in "${candidates[@]}"; do
      if is_up_to "$version" "$python"; then
        command -v "$python"
        return
      fi
    done
  done
}

# A version up to the given one that apt has, with venv, as X.Y. Nothing if apt has no package lists yet.
python_of_apt() {
  local version
  for version in 3.13 3.12 3.11 3.10 3.14; do
    if ((${version#3.} >= oldest && ${version#3.} <= $1)) &&
      [[ $(apt-cache policy "python$version-venv" 2>/dev/null) == *'Candidate: '[0-9]* ]]; then
      echo "$version"
      return
    fi
  done
}

look_for_missing() {
  missing=()
  has_server_with_plpython || missing+=("postgresql-plpython3-${server:-NN}")
  # The server's embedded Python is the system's Python. Worker sessions need psycopg2 in it.
  /usr/bin/python3 -c 'import psycopg2' 2>/dev/null || missing+=(python3-psycopg2)
  python=$(find_python)
  [[ -n $python || -z ${CEREBRO_PYTHON:-} ]] || die "CEREBRO_PYTHON=$CEREBRO_PYTHON cannot be used: $needs_python"
  if [[ -z $python ]]; then
    local version
    version=$(python_of_apt "$newest")
    missing+=("python${version:-3.NN}" "python${version:-3.NN}-venv")
  elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    missing+=("$([[ $python == /usr/bin/python3 ]] && echo python3-venv || echo "$(basename "$python")-venv")")
  fi
  command -v make >/dev/null || missing+=(make)
}

as_root() {
  if [[ $EUID == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "not root and no sudo here; as root: apt-get install ${missing[*]}"
  fi
}

install_packages() {
  command -v apt-get >/dev/null ||
    die "missing packages: ${missing[*]} (Debian's names). There is no apt-get here: install them with your package manager"
  [[ -z ${PG_CONFIG:-} ]] || has_server_with_plpython ||
    die "the PostgreSQL of PG_CONFIG=$PG_CONFIG has no server or no plpython3u: install what is missing, or unset PG_CONFIG"
  say "reading the package lists of apt, to install ${missing[*]}"
  as_root apt-get update -qq || say "apt-get update failed; continuing with the old package lists"
  if [[ -z $server ]]; then
    server=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/^ *Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -1)
    [[ -n $server ]] || die "apt has no package postgresql: check its sources"
  fi
  look_for_missing
  [[ " ${missing[*]} " != *" python3.NN "* ]] ||
    die "$needs_python. apt has none of them: install one, and set CEREBRO_PYTHON to its path"
  say "installing ${missing[*]}"
  local quiet=/etc/postgresql-common/createcluster.d/cerebro_db.conf
  # Otherwise Debian's package would make a cluster and start it on port 5432.
  [[ -d /etc/postgresql ]] || as_root sh -c "mkdir -p ${quiet%/*} && echo 'create_main_cluster = false' >$quiet"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 ||
    { as_root rm -f "$quiet"; die "apt-get install ${missing[*]} failed (see above)"; }
  as_root rm -f "$quiet"
  look_for_missing
  [[ ${#missing[@]} == 0 ]] || die "still missing after apt-get: ${missing[*]}"
}

if [[ $only == yes ]]; then
  python=$(find_python)
  [[ -n $python ]] || die "$needs_python: install one, and set CEREBRO_PYTHON to its path"
  "$python" -c 'import venv, ensurepip' 2>/dev/null || die "$python has no venv; on Debian: apt-get install python3-venv"
else
  server=$(newest_server)
  look_for_missing
  [[ ${#missing[@]} == 0 ]] || install_packages
fi

# --- the pinned environment ------------------------------------------------------------------------------

exec 9>"$home/.environment-lock"
# Two installations at once would break the environment.
flock -n 9 || { say "waiting for another installation into $home"; flock 9; }

version=$("$python" -c 'import sys; print(sys.version)')
if [[ $(cat "$venv/.python" 2>/dev/null) != "$version" ]] || ! "$venv/bin/python" -c '' 2>/dev/null; then
  say "making the Python environment $venv"
  rm -rf "$venv"
  "$python" -m venv "$venv" || die "could not make $venv"
  printf '%s\n' "$version" >"$venv/.python"
fi

rm -f "$home/.gpu" "$home/.jax-only"
[[ $build != gpu && $build != jax-only ]] || touch "$home/.$build"
pinned=requirements.txt
if [[ $build == jax-only ]]; then
  pinned=requirements-jax.txt
elif ! is_up_to 13 "$python"; then
  pinned=requirements-jax.txt
  version=$(python_of_apt 13)
  how="install Python 3.$oldest to 3.13, and set CEREBRO_PYTHON to its path"
  [[ -z $version ]] || how="apt-get install python$version python$version-venv"
  [[ -e $venv/.requirements.txt ]] ||
    say "there is no TensorFlow for Python 3.14 yet, so this environment gets JAX alone." \
      "For TensorFlow: $how; then run this again"
elif [[ $build == gpu ]]; then
  pinned=requirements-gpu.txt
elif [[ -z $other && ! -e $venv/.requirements.txt && -e /dev/nvidia0 ]]; then
  say "this machine has a GPU, which the usual builds of TensorFlow and JAX do not use: see docs/install.md#gpus"
fi

for set in "${sets[@]}"; do
  wanted=$(<"$clone/${set/#requirements.txt/$pinned}")
  hashes=(--no-deps --require-hashes) # they are complete, and the solver of pip 22.0 stops at their markers
  if [[ -n $other && $set == requirements.txt ]]; then # nobody has pinned the hashes of the other build
    wanted=$(sed -e '/^ /d' -e 's/ \\$//' -e '/^tensorflow-cpu==/d' <<<"$wanted"; echo "$other")
    hashes=()
  fi
  stamp=$(sha256sum <<<"$wanted" | cut -d' ' -f1)
  [[ $(cat "$venv/.$set" 2>/dev/null) == "$stamp" ]] && continue
  say "installing the packages of ${set/#requirements.txt/$pinned} (once; this may take some minutes)"
  rm -f "$venv/.$set"
  if [[ $set == requirements.txt ]]; then
    # Two builds of TensorFlow have files of the same names, so the old build is removed first.
    for old in tensorflow tensorflow_cpu; do
      ! compgen -G "$venv/lib/python3*/site-packages/$old-*.dist-info" >/dev/null ||
        grep -q "^${old//_/-}==" <<<"$wanted" ||
        "$venv/bin/python" -m pip uninstall --quiet --yes "$old" >&2 || die "pip could not remove $old (see above)"
    done
  fi
  quiet=(--quiet)
  [[ ! -t 2 ]] || quiet=(--progress-bar on) # a person sees each package
  "$venv/bin/python" -m pip install "${quiet[@]}" --no-input --disable-pip-version-check "${hashes[@]}" \
    -r <(echo "$wanted") >&2 ||
    die "pip could not install $set (see above)"
  printf '%s\n' "$stamp" >"$venv/.$set"
done

[[ $only == no ]] || exit 0

# --- the package itself: the client, the command, and the extension's files ---------------------------------

parts=(pyproject.toml LICENSE cerebro_db.control cerebro_db plpy sql)
for part in migrations README.md; do
  [[ ! -e $clone/$part ]] || parts+=("$part")
done
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
# Built from a copy, because setuptools leaves files behind and would use those of the last build again.
(cd "$clone" && tar -c --exclude=__pycache__ --exclude='sql/cerebro_db--*.sql' --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner \
  "${parts[@]}") >"$here/sources.tar"
stamp=$(sha256sum <"$here/sources.tar" | cut -d' ' -f1)
if [[ $(cat "$venv/.package" 2>/dev/null) != "$stamp" || ! -x $venv/bin/cerebro ]]; then
  say "installing the code of this folder into $venv"
  mkdir "$here/sources"
  tar -x -C "$here/sources" --no-same-owner -f "$here/sources.tar"
  "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --no-deps --no-build-isolation \
    --force-reinstall "$here/sources" >&2 || die "could not install the package itself (see above)"
  printf '%s\n' "$stamp" >"$venv/.package"
fi

if [[ $link == yes ]]; then
  if [[ -e $clone/.venv && ! -L $clone/.venv ]]; then
    die "$clone/.venv was not made by this script: move it away, so that it can become a link to $venv"
  fi
  [[ $(readlink "$clone/.venv" 2>/dev/null) == "$venv" ]] || ln -sfn "$venv" "$clone/.venv"
fi
