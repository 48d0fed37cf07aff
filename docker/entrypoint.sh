#!/usr/bin/env bash
# The image's entry point: makes the cluster at the first start, then runs PostgreSQL.
# Arguments go to postgres: docker run … cerebro_db -c shared_buffers=4GB
set -euo pipefail

data=${PGDATA:-/var/lib/postgresql/data}
bin=$(dirname "$(ls -d /usr/lib/postgresql/*/bin/initdb | sort -V | tail -1)")
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups env -u POSTGRES_PASSWORD HOME=/var/lib/postgresql "$@"; }
cd /

install -d -m 2775 -o postgres -g postgres /var/run/postgresql
if [[ ! -s $data/PG_VERSION ]]; then
  [[ -n ${POSTGRES_PASSWORD:-} ]] || { echo 'cerebro_db: set POSTGRES_PASSWORD to the password that the user postgres gets' >&2; exit 1; }
  install -d -m 700 -o postgres -g postgres "$data"
  as_postgres "$bin/initdb" -D "$data" -U postgres --auth-local=peer --auth-host=scram-sha-256 \
    --encoding=UTF8 --locale=C.UTF-8 --data-checksums >/dev/null
  cat >"$data/pg_hba.conf" <<'HBA'
# The first line lets the worker sessions of cerebro_db log in.
local  all  +cerebro_worker  scram-sha-256
local  all  postgres         peer map=cerebro
local  all  all              scram-sha-256
host   all  all  all         scram-sha-256
HBA
  printf 'cerebro %s postgres\n' postgres root >>"$data/pg_ident.conf"
  cat >>"$data/postgresql.conf" <<'CONF'
listen_addresses = '*'
password_encryption = 'scram-sha-256'
shared_buffers = '256MB'
max_wal_size = '4GB'
wal_compression = on
jit = off
CONF
  # Without a network address until the extension is installed.
  as_postgres "$bin/pg_ctl" -D "$data" -s -w -o "-c listen_addresses=''" -l "$data/first-start.log" start ||
    { cat "$data/first-start.log" >&2; exit 1; }
  as_postgres env WORD="$POSTGRES_PASSWORD" "$bin/psql" -qX -v ON_ERROR_STOP=1 -U postgres <<'SQL' ||
\set word `printf %s "$WORD"`
ALTER ROLE postgres PASSWORD :'word';
CREATE DATABASE cerebro;
ALTER DATABASE cerebro SET search_path = "$user", public, cerebro;
\connect cerebro
CREATE EXTENSION cerebro_db CASCADE;
CREATE EXTENSION cerebro_db_madlib;
\i /usr/local/share/cerebro_db/iris.sql
SQL
    { as_postgres "$bin/pg_ctl" -D "$data" -s -m immediate stop; rm -rf "${data:?}"/*; exit 1; }
  as_postgres "$bin/pg_ctl" -D "$data" -s -w stop
  rm -f "$data/first-start.log"
fi
unset POSTGRES_PASSWORD
export HOME=/var/lib/postgresql
exec setpriv --reuid=postgres --regid=postgres --init-groups "$bin/postgres" -D "$data" "$@"
