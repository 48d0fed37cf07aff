#!/usr/bin/env bash
# make deb: Debian packages into dist/. It needs Python 3.9 and dpkg-deb; no root, no debhelper and no PostgreSQL.
#
#   postgresql-NN-cerebro-db  the extensions for PostgreSQL NN, one package per version
#   cerebro-db-trainer        the command cerebro-db-trainer-setup, which makes the trainer's environment
#
# Environment: PG_VERSIONS="15 17" (default: the servers of this machine), MAINTAINER="Name <address>", REVISION=1
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
clone=$(cd "$here/../.." && pwd)
release=$(sed -n "s/^default_version *= *'\(.*\)'/\1/p" "$clone/cerebro_db.control")
version=$release-${REVISION:-1}
maintainer=${MAINTAINER:-The cerebro_db maintainers}
trainer_python=/var/lib/cerebro/venv/bin/python
die() { printf 'cerebro_db: %s\n' "$*" >&2; exit 1; }

command -v dpkg-deb >/dev/null || die 'make deb needs dpkg-deb, which Debian and Ubuntu have'
versions=${PG_VERSIONS:-$(for server in /usr/lib/postgresql/*/bin/postgres; do
  [[ ! -x $server ]] || cut -d/ -f5 <<<"$server"
done)}
[[ -n $versions ]] || die 'no PostgreSQL server on this machine: PG_VERSIONS="15 17" says for which ones to build'
for number in $versions; do
  [[ $number =~ ^[0-9]+$ ]] && ((number >= 13)) || die "PG_VERSIONS: $number is not a major version from 13 on"
done

# The same sources make the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$clone" log -1 --format=%ct 2>/dev/null || stat -c %Y "$clone/META.json")}
export SOURCE_DATE_EPOCH
stages=$(mktemp -d)
trap 'rm -rf "$stages"' EXIT
mkdir -p "$clone/dist"

# The file without @NN@ and @PACKAGE@.
filled() { sed -e "s/@NN@/${number:-}/g" -e "s/@PACKAGE@/$package/g" "$here/debian/$1"; }

# Writes a package of what lies in $stage. Arguments: the first letters of its scripts' names, and fields of control.
write_package() {
  local scripts=$1 script file
  shift
  local docs=$stage/usr/share/doc/$package
  mkdir -p "$stage/DEBIAN" "$docs"
  install -m 644 "$here/debian/copyright" "$docs/copyright"
  install -m 644 "$clone/docs/install.md" "$docs/install.md"
  gzip -9nc "$clone/CHANGELOG.md" >"$docs/changelog.gz"
  printf 'cerebro-db (%s) unstable; urgency=medium\n\n  * changelog.gz lists the changes.\n\n -- %s  %s\n' "$version" "$maintainer" \
    "$(LC_ALL=C date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")" | gzip -9n >"$docs/changelog.Debian.gz"
  for script in postinst prerm postrm; do
    [[ ! -e $here/debian/$scripts.$script ]] || filled "$scripts.$script" >"$stage/DEBIAN/$script"
  done
  chmod -f 755 "$stage"/DEBIAN/*
  {
    printf '%s\n' "Package: $package" "Version: $version" 'Source: cerebro-db' 'Architecture: all' \
      "Maintainer: $maintainer" 'Section: database' 'Priority: optional' \
      "Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$stage" | cut -f1)" "$@"
  } >"$stage/DEBIAN/control"
  (cd "$stage" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"
  find "$stage" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  file=$clone/dist/${package}_${version}_all.deb
  dpkg-deb --root-owner-group -Zxz --build "$stage" "$file" >/dev/null
  printf 'dist/%s  %s kB, installed %s kB\n' "$(basename "$file")" "$(($(stat -c %s "$file") / 1000))" \
    "$(sed -n 's/^Installed-Size: //p' "$stage/DEBIAN/control")"
}

for number in $versions; do
  package=postgresql-$number-cerebro-db
  stage=$stages/$package
  share=$stage/usr/share/postgresql/$number
  python3 -I "$clone/cerebro_db/embedded/extension.py" scripts --to "$share/extension"
  python3 -I "$clone/cerebro_db/embedded/extension.py" code --to "$share/cerebro_db/python" --trainer-python "$trainer_python"
  find "$share" -name __pycache__ -prune -exec rm -r {} + # postinst compiles with the system's Python
  # The administrator's settings are in /etc. postinst writes the file there.
  sed 's/^{/{\n "setup": "cerebro-db-trainer-setup",/' "$share/cerebro_db/python/install.json" >"$share/cerebro_db/install.json"
  rm "$share/cerebro_db/python/install.json"
  install -m 644 "$here/keep_settings.py" "$share/cerebro_db/keep_settings.py"
  ln -s "/etc/cerebro-db/$number.json" "$share/cerebro_db/python/install.json"
  mkdir -p "$stage/usr/share/python3/runtime.d"
  filled server.rtupdate >"$stage/usr/share/python3/runtime.d/$package.rtupdate"
  chmod 755 "$stage/usr/share/python3/runtime.d/$package.rtupdate"
  write_package server "Depends: postgresql-plpython3-$number, python3 (>= 3.9), python3-psycopg2" \
    'Recommends: cerebro-db-trainer' "Description: deep-learning model selection inside PostgreSQL $number" \
    " cerebro_db trains deep-learning models on a table inside PostgreSQL, finds the" \
    " best of many configurations, and predicts in a query." " ." \
    " This package has the extensions cerebro_db and cerebro_db_madlib for" \
    " PostgreSQL $number. cerebro-db-trainer makes the environment that trains."
done

unset number
package=cerebro-db-trainer
stage=$stages/$package
install -D -m 755 "$clone/docker/install.sh" "$stage/usr/share/$package/docker/install.sh"
install -m 644 "$clone"/requirements{,-gpu,-jax}.txt "$stage/usr/share/$package/"
install -D -m 755 "$here/debian/cerebro-db-trainer-setup" "$stage/usr/sbin/cerebro-db-trainer-setup"
mkdir -p "$stage/usr/share/man/man8"
gzip -9nc "$here/debian/cerebro-db-trainer-setup.8" >"$stage/usr/share/man/man8/cerebro-db-trainer-setup.8.gz"
write_package trainer 'Depends: python3 (>= 3.10), python3-venv' 'Recommends: ca-certificates' \
  'Description: environment of the processes that train for cerebro_db' \
  ' cerebro_db trains in processes that have TensorFlow, JAX and Optuna. Debian has' \
  ' no packages of these. This package has the command cerebro-db-trainer-setup,' \
  ' which an administrator runs once: it downloads the pinned versions with pip' \
  ' into /var/lib/cerebro/venv.'
