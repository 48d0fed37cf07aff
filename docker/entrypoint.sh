#!/usr/bin/env bash
# The image's entry point, with the variables of the image postgres (docs/containers.md). It makes the data folder at
# the first start, updates the extension after an upgrade of the image, and then becomes PostgreSQL.
# Arguments go to postgres: docker run … cerebro_db -c shared_buffers=4GB
set -euo pipefail

say() { printf 'cerebro_db: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[[ $# != 0 && $1 != -* ]] || set -- postgres "$@"
[[ $1 == postgres ]] || exec "$@" # another program of the image: docker run … cerebro_db psql …

# Files with secrets may be root's, so they are read before the rights of root are given up.
for name in POSTGRES_PASSWORD POSTGRES_USER POSTGRES_DB POSTGRES_INITDB_ARGS; do
  file=${name}_FILE
  [[ -n ${!file:-} ]] || continue
  [[ -z ${!name:-} ]] || die "set $name or $file, and not both"
  export "$name=$(<"${!file}")"
  unset "$file"
done

export HOME=/var/lib/postgresql
if [[ $EUID == 0 ]]; then
  mkdir -p "$PGDATA"
  chmod 700 "$PGDATA"
  # /var/run may be a new tmpfs, and the volume may come from an image with another number of the account.
  install -d -m 3777 -o postgres -g postgres /var/run/postgresql
  find "$PGDATA" ! -user postgres -exec chown --no-dereference postgres:postgres {} +
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

export POSTGRES_USER=${POSTGRES_USER:-postgres} POSTGRES_DB=${POSTGRES_DB:-cerebro}
method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
unfinished=$PGDATA/cerebro_unfinished # there until the first start is complete
known=$PGDATA/cerebro_version         # the version of the extension that the databases have been updated to
version=$(sed -n "s/^default_version *= *'\(.*\)'/\1/p" "$(pg_config --sharedir)/extension/cerebro_db.control")

run_psql() { psql --quiet --no-psqlrc --no-password --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" "$@"; }

# Starts a server without a network address. It asks nobody but worker sessions for a password.
start_server() {
  rules=$(mktemp)
  printf 'local  all  %s\n' '+cerebro_worker  scram-sha-256' 'all  trust' >"$rules"
  set -- "$@" -c listen_addresses= -c hba_file="$rules"
  pg_ctl --silent --wait --timeout=86400 --options="$(printf '%q ' "$@")" start
}

stop_server() {
  pg_ctl --silent --wait --timeout=86400 --mode="$1" stop
  rm -f "$rules"
}

empty_data_folder() { rm -rf "${PGDATA:?}"/*; }

undo_first_start() {
  say 'the first start failed (see above); the data folder is emptied again'
  stop_server immediate || true
  empty_data_folder
}

init_data_folder() {
  local -a given
  eval "given=(${POSTGRES_INITDB_ARGS:-})" # as a shell would read them: values may be quoted
  (
    if ! getent passwd "$EUID" >/dev/null; then # initdb wants to know its account's name
      printf 'postgres:x:%s:%s::%s:/bin/false\n' "$EUID" "$(id -g)" "$HOME" >"${names:=$(mktemp)}"
      export LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_PASSWD=$names NSS_WRAPPER_GROUP=/etc/group
    fi
    initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "${POSTGRES_PASSWORD:-}") \
      --encoding=UTF8 --locale=C.UTF-8 --data-checksums --auth=scram-sha-256 "${given[@]}" >/dev/null
  )
  touch "$unfinished"
  cat >"$PGDATA/pg_hba.conf" <<HBA
# The first line lets the worker sessions of cerebro_db log in.
local  all  +cerebro_worker  scram-sha-256
local  all  "$POSTGRES_USER"  peer map=cerebro
local  all  all              $([[ $method == trust ]] && echo trust || echo scram-sha-256)
host   all  all  all         $method
HBA
  printf 'cerebro %s "%s"\n' postgres "$POSTGRES_USER" root "$POSTGRES_USER" >>"$PGDATA/pg_ident.conf"
  cat >>"$PGDATA/postgresql.conf" <<'CONF'
listen_addresses = '*'
password_encryption = 'scram-sha-256'
shared_buffers = '256MB'
max_wal_size = '4GB'
wal_compression = on
jit = off
CONF
}

make_database() {
  run_psql --dbname=postgres --set=name="$POSTGRES_DB" <<'SQL'
SELECT format('CREATE DATABASE %I', :'name') WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = :'name') \gexec
ALTER DATABASE :"name" SET search_path = "$user", public, cerebro;
\connect :"name"
CREATE EXTENSION cerebro_db CASCADE;
CREATE EXTENSION cerebro_db_madlib;
\i /usr/local/share/cerebro_db/iris.sql
SQL
}

run_users_scripts() {
  local script
  for script in /docker-entrypoint-initdb.d/*; do
    case $script in
      *.sh) say "running $script"; if [[ -x $script ]]; then "$script"; else . "$script"; fi ;;
      *.sql) say "running $script"; run_psql --dbname="$POSTGRES_DB" --file="$script" ;;
      *.sql.gz) say "running $script"; gunzip -c "$script" | run_psql --dbname="$POSTGRES_DB" ;;
      */\*) ;; # the folder is empty
      *) say "ignoring $script: it is none of *.sh, *.sql and *.sql.gz" ;;
    esac
  done
}

first_start() {
  [[ -n ${POSTGRES_PASSWORD:-} || $method == trust ]] ||
    die "set POSTGRES_PASSWORD (or POSTGRES_PASSWORD_FILE) to the password that the user $POSTGRES_USER gets"
  [[ $method != trust ]] || say 'POSTGRES_HOST_AUTH_METHOD=trust: whoever reaches the server can log in as any user'
  mkdir -p "$PGDATA"
  trap undo_first_start EXIT
  trap 'exit 1' INT TERM
  init_data_folder
  start_server "$@"
  make_database
  run_users_scripts
  stop_server fast
  echo "$version" >"$known"
  rm "$unfinished"
  trap - EXIT INT TERM
  say 'the first start is complete'
}

# In each database that has the extension. A database in which this fails keeps its version, and the log names it.
update_extension() {
  local database databases failed=no
  start_server "$@"
  mapfile -t databases < <(run_psql --dbname=postgres --tuples-only --no-align \
    --command='SELECT datname FROM pg_database WHERE datallowconn ORDER BY datname')
  if [[ ${#databases[@]} == 0 ]]; then
    failed=yes
    say "the databases keep their version of the extension (see above). Set POSTGRES_USER to a superuser, or in each" \
      "database: ALTER EXTENSION cerebro_db UPDATE"
  fi
  for database in "${databases[@]}"; do
    run_psql --dbname="$database" <<'SQL' || {
SELECT format('ALTER EXTENSION %I UPDATE', name) FROM pg_available_extensions
 WHERE name IN ('cerebro_db', 'cerebro_db_madlib') AND installed_version <> default_version ORDER BY name \gexec
SQL
      failed=yes
      say "the database $database keeps its version of the extension (see above)." \
        "As a superuser in it: ALTER EXTENSION cerebro_db UPDATE"
    }
  done
  stop_server fast
  [[ $failed == yes ]] || echo "$version" >"$known"
}

if [[ -e $unfinished ]]; then
  say 'the first start was interrupted; it begins again'
  empty_data_folder
fi
if [[ ! -s $PGDATA/PG_VERSION ]]; then
  first_start "${@:2}"
elif [[ $(cat "$known" 2>/dev/null) != "$version" && ! -e $PGDATA/standby.signal ]]; then
  say "this image has version $version of the extension; updating the databases"
  update_extension "${@:2}"
fi
unset POSTGRES_PASSWORD
exec "$@"
