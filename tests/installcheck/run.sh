#!/usr/bin/env bash
# make installcheck: whether an installed extension works in a running server. It is written in the form of pg_regress,
# which some packages of PostgreSQL do not have: what psql prints for sql/*.sql must be expected/*.out.
#
# The server: PGHOST, PGPORT, PGUSER (a superuser), as for psql. PG_CONFIG: where psql is. CONTRIB_TESTDB=… as an argument
# of make: the database (default: contrib_regression). It is dropped afterwards, and kept if a test fails.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
database=${CONTRIB_TESTDB:-contrib_regression}
mark='Made by make installcheck'
say() { printf '%s\n' "$*"; }
die() { printf 'cerebro_db: %s\n' "$*" >&2; exit 1; }

psql=$("${PG_CONFIG:-pg_config}" --bindir 2>/dev/null || true)/psql
[[ -x $psql ]] || psql=$(command -v psql) || die 'no psql found: set PG_CONFIG'
export PGOPTIONS='-c client_min_messages=warning' PGTZ=UTC LC_ALL=C
ask() { "$psql" -X -q -v ON_ERROR_STOP=1 "$@"; }

server=$(ask -d postgres -At -c 'SELECT current_setting($$server_version$$)') || die 'no server answers: set PGHOST, PGPORT, PGUSER'
super=$(ask -d postgres -At -c 'SELECT rolsuper FROM pg_roles WHERE rolname = current_user')
[[ $super == t ]] || die 'installcheck needs a superuser: set PGUSER'
version=$(ask -d postgres -At -c "SELECT default_version FROM pg_available_extensions WHERE name = 'cerebro_db'")
[[ -n $version ]] || die "the PostgreSQL $server that answers has no cerebro_db: run make install with its PG_CONFIG"

results=${RESULTS:-$repository/build/installcheck}
mkdir -p "$results" 2>/dev/null && [[ -w $results ]] || results=$(mktemp -d)
rm -f "$results"/*.out "$results/regression.diffs"
[[ $database =~ ^[a-z_][a-z0-9_]*$ ]] || die "CONTRIB_TESTDB: use lower-case letters, digits and underscores"
say "# cerebro_db $version in PostgreSQL $server, database $database"
owned="FROM pg_database WHERE datname = '$database' AND shobj_description(oid, 'pg_database')"
theirs=$(ask -d postgres -At -c "SELECT count(*) $owned IS DISTINCT FROM '$mark'")
((theirs == 0)) || die "the database $database was not made by make installcheck: drop it, or run make installcheck CONTRIB_TESTDB=another_name"
ask -d postgres -c "DROP DATABASE IF EXISTS \"$database\"" -c "CREATE DATABASE \"$database\" TEMPLATE template0" \
  -c "COMMENT ON DATABASE \"$database\" IS '$mark'"

for file in "$here"/sql/*.sql; do
  name=$(basename "$file" .sql)
  SECONDS=0
  # Not --echo-all, whose form differs between versions of psql. Errors are part of the output.
  "$psql" -X -q -v repository="$repository" -v VERBOSITY=terse -v SHOW_CONTEXT=never -P null=NULL -d "$database" \
    <"$file" >"$results/$name.out" 2>&1 || true
  if ! diff -u "$here/expected/$name.out" "$results/$name.out" >"$results/regression.diffs"; then
    say "not ok  $name  $SECONDS s"
    cat "$results/regression.diffs"
    if ask -d "$database" -At -c 'SELECT cerebro.version()' >/dev/null 2>&1; then
      say '# what cerebro.doctor() finds wrong:'
      ask -d "$database" -x -c "SELECT component, check_name, found, advice FROM cerebro.doctor() WHERE status = 'problem'" || true
    fi
    die "the test $name failed: $results/regression.diffs. The database $database is kept"
  fi
  say "ok      $name  $SECONDS s"
done
rm -f "$results/regression.diffs"
ask -d postgres -c "DROP DATABASE \"$database\""
say '# all tests passed'
