#!/usr/bin/env bash
# The image's entry point, with the variables of the image postgres (docs/install.md#containers). It makes the data folder at
# the first start, updates the extension after an upgrade of the image, and then becomes PostgreSQL.
# Arguments go to postgres: docker run … cerebro_db -c shared_buffers=4GB
set -euo pipefail

say() { printf 'cerebro_db: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[[ $# != 0 && $1 != -* ]] || set -- postgres "$@"
[[ $1 == postgres ]] || exec "$@" # another program of the image: docker run … cerebro_db psql …
for argument in "${@:2}"; do
  case $argument in --help | '-?' | --version | -V | --describe-config) exec "$@" ;; esac
done

scripts=${CEREBRO_SCRIPTS:-/docker-entrypoint-initdb.d}
iris=${CEREBRO_IRIS:-/usr/local/share/cerebro_db/iris.sql}
sockets=${CEREBRO_SOCKETS:-/var/run/postgresql}
unfinished=$PGDATA/cerebro_unfinished # from before the first file of the first start until it is complete
known=$PGDATA/cerebro_version         # the version of the extension that the databases have been updated to
temporary=                            # a private folder, with the rules and the socket of the temporary server

# A folder without a cluster must be empty, or have the mark of a first start. Nothing else is ever deleted.
if [[ ! -e $unfinished && ! -s $PGDATA/PG_VERSION ]]; then
  found=$(ls -A "$PGDATA" 2>/dev/null | head -n 3 | tr '\n' ' ') || true
  [[ -z $found ]] ||
    die "the folder $PGDATA has no cluster and is not empty; it has: ${found% }. Use a subfolder:" \
      "set PGDATA to $PGDATA/pgdata, or to the folder of your cluster"
fi

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
  install -d -m 3777 -o postgres -g postgres "$sockets"
  find "$PGDATA/" ! -user postgres -exec chown --no-dereference postgres:postgres {} +
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

export POSTGRES_USER=${POSTGRES_USER:-postgres} POSTGRES_DB=${POSTGRES_DB:-cerebro}
method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
port=${PGPORT:-5432}
version=$(sed -n "s/^default_version *= *'\(.*\)'/\1/p" "$(pg_config --sharedir)/extension/cerebro_db.control")

# psql in the database $1. PGDATABASE, because --dbname takes a database called "host=…" for a connection string.
run_psql() {
  PGDATABASE=$1 psql --quiet --no-psqlrc --no-password --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" "${@:2}"
}

# psql for statements of this file. A database's own settings must not choose the functions that a superuser calls.
own_psql() { PGOPTIONS='-c search_path=pg_catalog -c default_transaction_read_only=off' run_psql "$@"; }

# Waits for a command so that a signal ends the wait: bash runs no trap before the end of a command in the foreground.
patiently() { "$@" <&0 & wait $!; }

# Starts a server without a network address. It asks nobody but worker sessions for a password. Its socket is in
# $temporary, where only this account can reach it, and in the folder $1 unless that is empty.
start_server() {
  local folders=$temporary${1:+,$1}
  printf 'local  all  %s\n' '+cerebro_worker  scram-sha-256' 'all  trust' >"$temporary/rules"
  set -- "${@:2}" -p "$port" -c listen_addresses= -c hba_file="$temporary/rules" -c unix_socket_directories="$folders"
  patiently pg_ctl --silent --wait --timeout=86400 --options="$(printf '%q ' "$@")" start
}

stop_server() {
  if pg_ctl status >/dev/null 2>&1; then
    pg_ctl --silent --wait --timeout=86400 --mode="$1" stop
  fi
  rm -rf "$temporary"
}

# The mark goes last, so that the next start can go on with an emptying that was interrupted.
empty_data_folder() {
  [[ -e $unfinished ]] || return 0
  find "$PGDATA/" -mindepth 1 -maxdepth 1 ! -name "${unfinished##*/}" -exec rm -rf {} +
  rm "$unfinished"
}

undo_first_start() {
  trap '' INT TERM
  say 'the first start failed (see above); the data folder is emptied again'
  stop_server immediate || true
  empty_data_folder
}

init_data_folder() {
  local made=$PGDATA/first_start account superuser=scram-sha-256
  local -a given
  eval "given=(${POSTGRES_INITDB_ARGS:-})" # as a shell would read them: values may be quoted
  account=$(id -un 2>/dev/null) || account=
  (
    if [[ -z $account ]]; then # initdb wants to know its account's name
      printf 'postgres:x:%s:%s::%s:/bin/false\n' "$EUID" "$(id -g)" "$HOME" >"$temporary/passwd"
      export LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_PASSWD=$temporary/passwd NSS_WRAPPER_GROUP=/etc/group
    fi
    initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "${POSTGRES_PASSWORD:-}") \
      --encoding=UTF8 --locale=C.UTF-8 --data-checksums --auth=scram-sha-256 "${given[@]}" --pgdata="$made" >/dev/null
  )
  chmod --reference="$made" "$PGDATA"
  mv "$made"/* "$PGDATA/"
  rmdir "$made"
  # The server cannot ask for the name of an account that has none, so such an account needs the password.
  [[ $method != trust ]] || superuser=trust
  [[ -z $account ]] || superuser='peer map=cerebro'
  cat >"$PGDATA/pg_hba.conf" <<HBA
# The first line lets the worker sessions of cerebro_db log in.
local  all  +cerebro_worker  scram-sha-256
local  all  "$POSTGRES_USER"  $superuser
local  all  all              $([[ $method == trust ]] && echo trust || echo scram-sha-256)
host   all  all  all         $method
HBA
  for account in postgres root $account; do
    printf 'cerebro  "%s"  "%s"\n' "$account" "$POSTGRES_USER"
  done | sort -u >>"$PGDATA/pg_ident.conf"
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
  own_psql postgres --set=name="$POSTGRES_DB" <<'SQL'
SELECT pg_catalog.format('CREATE DATABASE %I', :'name')
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = :'name') \gexec
SQL
  own_psql "$POSTGRES_DB" --set=iris="$iris" <<'SQL'
CREATE EXTENSION cerebro_db CASCADE;
CREATE EXTENSION cerebro_db_madlib;
\i :iris
SQL
}

run_users_scripts() {
  local script
  for script in "$scripts"/*; do
    case $script in
      *.sh) say "running $script"; if [[ -x $script ]]; then "$script"; else source_script "$script"; fi ;;
      *.sql) say "running $script"; run_psql "$POSTGRES_DB" --file="$script" ;;
      *.sql.gz) say "running $script"; gunzip -c "$script" | run_psql "$POSTGRES_DB" ;;
      */\*) ;; # the folder is empty
      *) say "ignoring $script: it is none of *.sh, *.sql and *.sql.gz" ;;
    esac
  done
}

# With the options of the image postgres, in which an unset variable is no error.
source_script() {
  set +u
  . "$1"
  set -euo pipefail
}

first_start() {
  [[ -n ${POSTGRES_PASSWORD:-} || $method == trust ]] ||
    die "set POSTGRES_PASSWORD (or POSTGRES_PASSWORD_FILE) to the password that the user $POSTGRES_USER gets"
  [[ $method != trust ]] || say 'POSTGRES_HOST_AUTH_METHOD=trust: whoever reaches the server can log in as any user'
  mkdir -p "$PGDATA"
  [[ -O $PGDATA ]] || die "the account $EUID does not own the folder $PGDATA: set PGDATA to a new folder in it"
  touch "$unfinished"
  trap undo_first_start EXIT
  trap 'exit 1' INT TERM
  temporary=$(mktemp -d)
  init_data_folder
  # Scripts may name the usual folder of the socket.
  start_server "$([[ ! -w $sockets ]] || echo "$sockets")" "$@"
  local -x PGHOST=$temporary PGHOSTADDR= PGPORT=$port # until the end of this function
  make_database
  run_users_scripts
  stop_server fast
  echo "$version" >"$known"
  rm "$unfinished"
  trap - EXIT INT TERM
  sync "$PGDATA" # after a crash of the machine the mark must not be there again
  say 'the first start is complete'
}

end_update() {
  trap '' INT TERM
  stop_server fast
}

# In each database that has the extension. A database in which this fails keeps its version, and the log names it.
update_extension() {
  local database databases failed=no
  trap end_update EXIT
  trap 'exit 1' INT TERM
  temporary=$(mktemp -d)
  start_server '' "$@"
  local -x PGHOST=$temporary PGHOSTADDR= PGPORT=$port
  mapfile -t -d '' databases < <(own_psql postgres --tuples-only --no-align --record-separator-zero \
    --command='SELECT datname FROM pg_catalog.pg_database WHERE datallowconn ORDER BY datname')
  if [[ ${#databases[@]} == 0 ]]; then
    failed=yes
    say "the databases keep their version of the extension (see above). Set POSTGRES_USER to a superuser, or in each" \
      "database: ALTER EXTENSION cerebro_db UPDATE"
  fi
  for database in "${databases[@]}"; do
    patiently own_psql "$database" <<'SQL' || {
SELECT pg_catalog.format('ALTER EXTENSION %I UPDATE', name) FROM pg_catalog.pg_available_extensions
 WHERE name IN ('cerebro_db', 'cerebro_db_madlib') AND installed_version <> default_version ORDER BY name \gexec
SQL
      failed=yes
      say "the database $database keeps its version of the extension (see above)." \
        "As a superuser in it: ALTER EXTENSION cerebro_db UPDATE"
    }
  done
  stop_server fast
  trap - EXIT INT TERM
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
