#!/usr/bin/env bash
# The life of the Debian packages on a Debian that has nothing of PostgreSQL: install, set up, train, upgrade, remove and
# purge. It needs root and a network, and changes the system: run it in a container or a chroot.
#
#   tests/installcheck/debian.sh FOLDER_OF_THE_PACKAGES
set -euo pipefail

packages=$(cd "${1:?the folder of the packages}" && pwd)
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export DEBIAN_FRONTEND=noninteractive
die() { printf 'debian.sh: %s\n' "$*" >&2; exit 1; }
step() { printf '== %s (%s s)\n' "$*" "$SECONDS"; }
[[ $EUID == 0 ]] || die 'run as root'
! compgen -G '/usr/lib/postgresql/*' >/dev/null || die 'this system has a PostgreSQL already'

apt-get update -qq
number=$(apt-cache depends postgresql | sed -n 's/^ *Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -1)
server=postgresql-$number-cerebro-db
share=/usr/share/postgresql/$number
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/var/lib/postgresql "$@"; }
query() { as_postgres "/usr/lib/postgresql/$number/bin/psql" -X -At -v ON_ERROR_STOP=1 "$@"; }
cd /

step "installing $server"
deb=("$packages/${server}"_*.deb "$packages"/cerebro-db-trainer_*.deb)
# Not the release notes of services: nothing is started in a chroot.
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
apt-get install -y -q --no-install-recommends "${deb[@]}"
compgen -G "$share/cerebro_db/python/cerebro_plpy/__pycache__/*.pyc" >/dev/null || die 'the code was not compiled'
[[ $(stat -c '%U %a' "$share/cerebro_db/python") == 'root 755' ]] || die 'the code does not belong to root'

step 'a cluster, as an administrator has it'
pg_ctlcluster "$number" main start 2>/dev/null || true
query -c 'SELECT 1' >/dev/null || die 'the cluster main does not answer'
sed -i '1i local  all  +cerebro_worker  scram-sha-256' "/etc/postgresql/$number/main/pg_hba.conf"
query -c 'SELECT pg_reload_conf()' >/dev/null
query -q -c 'CREATE EXTENSION cerebro_db CASCADE' 2>&1
said=$(query -c "SELECT found, advice FROM cerebro.doctor() WHERE check_name = 'install.json'")
printf '%s\n' "$said"
[[ $said == *'Run cerebro-db-trainer-setup'* ]] || die 'the doctor does not say what the missing environment needs'

step 'the environment of the trainer'
cerebro-db-trainer-setup
cerebro-db-trainer-setup # quick when nothing is missing
du -sm /var/lib/cerebro

step 'installcheck'
query -c "SELECT component, check_name, status, found FROM cerebro.doctor()"
as_postgres env PG_CONFIG="/usr/lib/postgresql/$number/bin/pg_config" RESULTS="$(as_postgres mktemp -d)" \
  "$repository/tests/installcheck/run.sh"

step 'an upgrade keeps the settings of the administrator'
sed -i 's/^{/{ "keep_ready": 60,/' "/etc/cerebro-db/$number.json"
apt-get install -y -q --reinstall "${deb[@]}"
grep -q '"keep_ready": 60' "/etc/cerebro-db/$number.json" || die 'the settings are gone'
query -c "SELECT status, found FROM cerebro.doctor() WHERE check_name = 'install.json'" | grep '^ok' || die 'the doctor objects'

step 'removing and purging'
query -q -c 'DROP EXTENSION cerebro_db CASCADE'
pg_ctlcluster "$number" main stop -m fast
apt-get remove -y -q "$server" cerebro-db-trainer
[[ ! -e $share/cerebro_db ]] || die "left over: $(find "$share/cerebro_db" | head)"
[[ -x /var/lib/cerebro/venv/bin/python ]] || die 'the environment went before a purge'
apt-get purge -y -q "$server" cerebro-db-trainer
# The data folder is the user's.
left=$(find / -xdev \( -path /proc -o -path /sys -o -path "$repository" -o -path "$packages" -o -path /tmp -o -path /var/lib/postgresql \) -prune -o \
  -iname '*cerebro*' -print | grep -v '^/var/cache/apt\|^/var/log\|/pkgcache' || true)
[[ -z $left ]] || die "left over: $left"
step 'done'
