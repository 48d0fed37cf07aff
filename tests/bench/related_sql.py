"""The SQL of the works with related tables: features as a person writes them, planted signals, and the shop."""

from __future__ import annotations

# -- features by hand ---------------------------------------------------------------------------------------------

LATE = """
SELECT e.*, a.name AS airline, p.built, p.type, p.manufacturer, p.seats, p.engine, o.lat AS origin_lat,
       d.lat AS dest_lat, d.lon AS dest_lon, d.alt AS dest_alt, d.tz AS dest_zone,
       w.temp, w.dewp, w.humid, w.wind_dir, w.wind_speed, w.wind_gust, w.precip, w.pressure, w.visib,
       extract(dow FROM e.departs) AS weekday, extract(epoch FROM e.departs - last.arrived) / 3600 AS hours_since,
       last.arr_delay AS last_arrival, last.dep_delay AS last_departure, last.air_time AS last_air_time,
       of_plane.*, of_origin.*, of_dest.*, of_carrier.*, of_route.*
  FROM examples e
  LEFT JOIN airlines a ON a.carrier = e.carrier
  LEFT JOIN planes p ON p.tailnum = e.tailnum
  LEFT JOIN airports o ON o.faa = e.origin
  LEFT JOIN airports d ON d.faa = e.dest
  LEFT JOIN weather w ON w.id = e.weather_id AND w.observed < e.departs
  LEFT JOIN LATERAL (SELECT * FROM arrivals r WHERE r.tailnum = e.tailnum AND r.arrived < e.departs
                      ORDER BY r.arrived DESC LIMIT 1) last ON true
  LEFT JOIN LATERAL (SELECT count(*) AS plane_flights, avg(arr_delay) AS plane_delay
                       FROM arrivals r WHERE r.tailnum = e.tailnum AND r.arrived < e.departs
                        AND r.arrived >= e.departs - interval '30 days') of_plane ON true
  LEFT JOIN LATERAL (SELECT count(*) AS origin_flights, avg(dep_delay) AS origin_delay,
                            avg((dep_delay >= 15)::int) AS origin_late,
                            avg(dep_delay) FILTER (WHERE r.arrived >= e.departs - interval '2 hours') AS origin_delay_2h
                       FROM arrivals r WHERE r.origin = e.origin AND r.arrived < e.departs
                        AND r.arrived >= e.departs - interval '6 hours') of_origin ON true
  LEFT JOIN LATERAL (SELECT count(*) AS dest_flights, avg(arr_delay) AS dest_delay,
                            avg((arr_delay >= 15)::int) AS dest_late
                       FROM arrivals r WHERE r.dest = e.dest AND r.arrived < e.departs
                        AND r.arrived >= e.departs - interval '24 hours') of_dest ON true
  LEFT JOIN LATERAL (SELECT count(*) AS carrier_flights, avg(arr_delay) AS carrier_delay,
                            avg(arr_delay) FILTER (WHERE r.origin = e.origin) AS carrier_delay_here
                       FROM arrivals r WHERE r.carrier = e.carrier AND r.arrived < e.departs
                        AND r.arrived >= e.departs - interval '12 hours') of_carrier ON true
  LEFT JOIN LATERAL (SELECT avg(arr_delay) AS route_delay, avg((arr_delay >= 15)::int) AS route_late
                       FROM arrivals r WHERE r.dest = e.dest AND r.arrived < e.departs
                        AND r.carrier = e.carrier AND r.origin = e.origin
                        AND r.arrived >= e.departs - interval '30 days') of_route ON true
"""
SEASONS = """
SELECT e.*, extract(year FROM e.at) - p.birth_year AS age, p.country, p.weight, p.height, p.bats, p.throws,
       extract(epoch FROM e.at - p.debut) / 31557600 AS years_since_debut,
       t.franchise, t.place, t.wins AS team_wins, t.losses AS team_losses, t.runs AS team_runs, t.attendance,
       e.hits / nullif(e.at_bats, 0)::float8 AS average, b.*, l.*, q.*, f.*, a.*, s.*, m.*
  FROM examples e
  LEFT JOIN people p USING (player_id)
  LEFT JOIN teams t ON t.team_id = e.team_id AND t.ended < e.at
  LEFT JOIN LATERAL (
       SELECT count(DISTINCT x.ended) AS seasons, sum(x.games) AS career_games, sum(x.at_bats) AS career_at_bats,
              sum(x.hits) AS career_hits, sum(x.homers) AS career_homers, max(x.hits) AS most_hits,
              max(x.homers) AS most_homers, sum(x.hits) / nullif(sum(x.at_bats), 0)::float8 AS career_average,
              sum(x.hits) FILTER (WHERE x.ended > e.at - interval '3 years') AS hits_3,
              sum(x.at_bats) FILTER (WHERE x.ended > e.at - interval '3 years') AS at_bats_3,
              sum(x.games) FILTER (WHERE x.ended > e.at - interval '3 years') AS games_3,
              sum(x.homers) FILTER (WHERE x.ended > e.at - interval '3 years') AS homers_3,
              max(x.ended) FILTER (WHERE x.ended < e.at - interval '6 months') AS ended_before
         FROM batting x WHERE x.player_id = e.player_id AND x.ended < e.at) b ON true
  LEFT JOIN LATERAL (
       SELECT sum(x.games) AS games_before, sum(x.at_bats) AS at_bats_before, sum(x.hits) AS hits_before,
              sum(x.homers) AS homers_before
         FROM batting x WHERE x.player_id = e.player_id AND x.ended < e.at - interval '6 months'
          AND x.ended > e.at - interval '18 months') l ON true
  LEFT JOIN LATERAL (
       SELECT sum(x.outs) AS career_outs, sum(x.outs) FILTER (WHERE x.ended > e.at - interval '6 months') AS outs,
              sum(x.games) FILTER (WHERE x.ended > e.at - interval '6 months') AS pitched,
              sum(x.started) FILTER (WHERE x.ended > e.at - interval '6 months') AS started,
              sum(x.saves) FILTER (WHERE x.ended > e.at - interval '6 months') AS saves,
              sum(x.wins) FILTER (WHERE x.ended > e.at - interval '6 months') AS won,
              sum(x.strikeouts) FILTER (WHERE x.ended > e.at - interval '6 months') AS struck,
              27.0 * sum(x.earned) FILTER (WHERE x.ended > e.at - interval '6 months')
                / nullif(sum(x.outs) FILTER (WHERE x.ended > e.at - interval '6 months'), 0) AS earned_average
         FROM pitching x WHERE x.player_id = e.player_id AND x.ended < e.at) q ON true
  LEFT JOIN LATERAL (
       SELECT mode() WITHIN GROUP (ORDER BY x.position) AS usual_position, count(DISTINCT x.position) AS positions,
              sum(x.errors) FILTER (WHERE x.ended > e.at - interval '6 months') AS errors
         FROM fielding x WHERE x.player_id = e.player_id AND x.ended < e.at) f ON true
  LEFT JOIN LATERAL (
       SELECT count(*) AS awards, count(*) FILTER (WHERE x.given > e.at - interval '1 year') AS awards_1
         FROM awards x WHERE x.player_id = e.player_id AND x.given < e.at) a ON true
  LEFT JOIN LATERAL (
       SELECT count(*) AS times_star, count(*) FILTER (WHERE x.chosen > e.at - interval '1 year') AS star_now,
              count(*) FILTER (WHERE x.chosen > e.at - interval '3 years') AS star_3
         FROM allstars x WHERE x.player_id = e.player_id AND x.chosen < e.at) s ON true
  LEFT JOIN LATERAL (
       SELECT (array_agg(x.salary ORDER BY x.paid DESC))[1] AS salary, max(x.salary) AS most_salary
         FROM salaries x WHERE x.player_id = e.player_id AND x.paid < e.at) m ON true
"""
VISITS = """
SELECT e.*, s.id AS shop, r.id AS region, r.climate, v.*
  FROM examples e
  JOIN people p ON p.id = e.person_id JOIN shops s ON s.id = p.shop_id JOIN regions r ON r.id = s.region_id
  LEFT JOIN LATERAL (
       SELECT count(*) AS visits, count(*) FILTER (WHERE x.at >= e.at - interval '7 days') AS visits_7,
              count(*) FILTER (WHERE x.at >= e.at - interval '30 days') AS visits_30,
              count(*) FILTER (WHERE x.at >= e.at - interval '90 days') AS visits_90,
              extract(epoch FROM e.at - max(x.at)) / 86400 AS days_since_last,
              extract(epoch FROM e.at - min(x.at)) / 86400 AS days_since_first,
              avg((x.kind = 'A')::int) AS a, avg((x.kind = 'B')::int) AS b, avg((x.kind = 'C')::int) AS c,
              (array_agg(x.kind ORDER BY x.at DESC))[1] AS last_kind, avg(x.value) AS mean_value, sum(x.value) AS value
         FROM visits x WHERE x.person_id = e.person_id AND x.at < e.at) v ON true
"""

# -- planted signals ----------------------------------------------------------------------------------------------

CHANCE = "((hashint8extended({of}::bigint, {seed}) & 1073741823) / 1073741824.0)"  # from 0 to 1, the same each time


def chance(of: str, seed: int) -> str:
    return CHANCE.format(of=of, seed=seed)


PLACES = [
    "CREATE TABLE regions (id integer PRIMARY KEY, climate text)",
    "INSERT INTO regions SELECT i, (ARRAY['dry', 'cold', 'mild', 'wet'])[1 + i % 4] FROM generate_series(1, 24) i",
    "CREATE TABLE shops (id integer PRIMARY KEY, region_id integer, size double precision)",
    f"INSERT INTO shops SELECT i, 1 + floor(24 * {chance('i', 1)})::int, {chance('i', 2)}"
    " FROM generate_series(1, 400) i",
    "CREATE TABLE people (id integer PRIMARY KEY, shop_id integer, age integer)",
    f"INSERT INTO people SELECT i, 1 + floor(400 * {chance('i', 3)})::int, 18 + floor(60 * {chance('i', 4)})::int"
    " FROM generate_series(1, {rows}) i",
    "CREATE TABLE moments AS SELECT i AS person_id,"
    f" date_trunc('day', timestamp '2025-01-01' + {chance('i', 5)} * interval '365 days') AS at"
    " FROM generate_series(1, {rows}) i",
]
# Up to twelve visits of each person, at ages in days that are mostly small.
MANY = [
    "CREATE TABLE visits AS SELECT row_number() OVER (ORDER BY person_id, n) AS id, person_id,"
    f" m.at - (-ln(1 - {chance('person_id * 100 + n', 6)}) * 40) * interval '1 day' AS at,"
    f" (ARRAY['A', 'B', 'C'])[1 + floor(3 * {chance('person_id * 100 + n', 7)})::int] AS kind,"
    f" {chance('person_id * 100 + n', 8)}::double precision AS value"
    f" FROM moments m, generate_series(1, 1 + floor(12 * {chance('m.person_id', 9)})::int) n",
    "ALTER TABLE visits ADD PRIMARY KEY (id)",
]
# Six visits of each person, two of each kind.  The second and the third newest one are a minute apart, one is of kind A
# and one of kind B, and which of them came first is the target.  No window of days divides them, and the newest visit
# is always of kind C.
IN_ORDER = [
    f"CREATE TABLE drawn AS SELECT person_id, at, {chance('person_id', 10)} < 0.5 AS label,"
    f" exp(ln(100) * {chance('person_id', 11)}) AS pace FROM moments",
    "CREATE TABLE visits AS SELECT row_number() OVER (ORDER BY d.person_id, n) AS id, d.person_id, d.at - sum("
    f"CASE n WHEN 3 THEN 1 / 1440.0 ELSE pace * (0.5 + {chance('d.person_id * 100 + n', 12)}) END)"
    " OVER (PARTITION BY d.person_id ORDER BY n) * interval '1 day' AS at, CASE n WHEN 1 THEN 'C'"
    " WHEN 2 THEN CASE WHEN label THEN 'A' ELSE 'B' END WHEN 3 THEN CASE WHEN label THEN 'B' ELSE 'A' END"
    " ELSE shuffled[n - 3] END AS kind,"
    f" {chance('d.person_id * 100 + n', 13)}::double precision AS value"
    " FROM drawn d, LATERAL (SELECT array_agg(kind ORDER BY"
    f" {chance('d.person_id * 10 + i', 14)}) AS shuffled FROM unnest(ARRAY['A', 'B', 'C']) WITH ORDINALITY"
    " AS u (kind, i)) f, generate_series(1, 6) n",
    "ALTER TABLE visits ADD PRIMARY KEY (id)",
]


def _examples(target: str) -> list[str]:
    """The table of examples; of one in twenty the target is another one."""
    return [
        "CREATE TABLE examples AS SELECT m.person_id AS id, m.person_id, m.at,"
        f" {chance('m.person_id', 17)}::double precision AS noise,"
        f" ({target}) <> ({chance('m.person_id', 18)} < 0.05) AS target FROM moments m",
        "ALTER TABLE examples ADD PRIMARY KEY (id)",
    ]


OF_VISITS = "SELECT {what} FROM visits v WHERE v.person_id = m.person_id"
PLANTED = {
    "count": [*PLACES, *MANY, *_examples(
        f"({OF_VISITS.format(what='count(*)')} AND v.at >= m.at - interval '30 days') >= 3")],
    "recency": [*PLACES, *MANY, *_examples(f"({OF_VISITS.format(what='max(v.at)')}) >= m.at - interval '7 days'")],
    "order": [*PLACES, *IN_ORDER, *_examples("(SELECT label FROM drawn d WHERE d.person_id = m.person_id)")],
    "two tables away": [*PLACES, *MANY, *_examples(
        "(SELECT climate IN ('dry', 'cold') FROM people p JOIN shops s ON s.id = p.shop_id"
        " JOIN regions r ON r.id = s.region_id WHERE p.id = m.person_id)")],
}  # fmt: skip
FEATURES = {
    "late arrivals": LATE,
    **dict.fromkeys(("all-stars", "next hits", "last seasons"), SEASONS),
    **dict.fromkeys(PLANTED, VISITS),
}

# -- the shop -----------------------------------------------------------------------------------------------------

SHOP = [
    "CREATE TABLE customers (customer_id integer PRIMARY KEY, joined date, country text, channel text)",
    f"INSERT INTO customers SELECT i, date '2023-01-01' + floor(500 * {chance('i', 20)})::int,"
    f" (ARRAY['de', 'fr', 'it', 'es', 'pl'])[1 + floor(5 * {chance('i', 21)})::int],"
    f" (ARRAY['web', 'app', 'shop'])[1 + floor(3 * {chance('i', 22)})::int] FROM generate_series(1, {{customers}}) i",
    # Some customers order much more often than others.
    "CREATE TABLE orders AS SELECT i AS order_id, customer_id, joined +"
    f" (floor((911 - (joined - date '2023-01-01')) * 86400 * {chance('i', 24)}) * interval '1 second') AS ordered_at,"
    f" (ARRAY['paid', 'returned', 'open'])[1 + floor(2.2 * {chance('i', 25)})::int] AS status,"
    f" round((5 + 95 * {chance('i', 26)})::numeric, 2)::double precision AS amount"
    f" FROM (SELECT i, 1 + floor({{customers}} * {chance('i', 23)} ^ 2)::int AS customer_id"
    " FROM generate_series(1, {orders}) i) o JOIN customers USING (customer_id)",
    "ALTER TABLE orders ADD PRIMARY KEY (order_id), ADD FOREIGN KEY (customer_id) REFERENCES customers",
    "CREATE TABLE items AS SELECT i AS item_id,"
    f" 1 + floor({{orders}} * {chance('i', 27)})::int AS order_id,"
    f" 'c' || floor(8 * {chance('i', 28)} ^ 2)::int AS category, 1 + floor(3 * {chance('i', 29)})::int AS quantity,"
    f" round((1 + 50 * {chance('i', 30)})::numeric, 2)::double precision AS price"
    " FROM generate_series(1, {items}) i",
    "ALTER TABLE items ADD PRIMARY KEY (item_id), ADD FOREIGN KEY (order_id) REFERENCES orders",
    "CREATE INDEX ON orders (customer_id, ordered_at)",
    "CREATE INDEX ON items (order_id)",
    "ANALYZE customers, orders, items",
]
WINDOWS = {"": "", "_30": "30 days", "_90": "90 days", "_180": "180 days"}


def _shop_features() -> list[str]:
    """Columns of an example ``t``, its customer ``c``, and the orders ``o`` of it."""
    listed = []
    for ending, window in WINDOWS.items():
        where = f" FILTER (WHERE o.ordered_at >= t.as_of - interval '{window}')" if window else ""
        listed += [f"count(o.order_id){where} AS orders{ending}"]
        for name in ("amount", "quantity", "price"):
            listed += [f"sum(o.{name}){where} AS {name}_sum{ending}", f"avg(o.{name}){where} AS {name}_mean{ending}"]
    listed += ["stddev(o.amount) AS amount_spread", "min(o.amount) AS least_amount", "max(o.amount) AS largest_amount"]
    listed += [f"avg((o.status = '{status}')::int) AS {status}" for status in ("paid", "returned", "open")]
    listed += [f"sum(o.c{i}) AS category_{i}" for i in range(8)]
    listed += ["extract(epoch FROM t.as_of - max(o.ordered_at)) AS since_last",
               "extract(epoch FROM t.as_of - min(o.ordered_at)) AS since_first"]  # fmt: skip
    return listed


OF_ITEMS = "sum(quantity) AS quantity, avg(price) AS price, " + ", ".join(
    f"count(*) FILTER (WHERE category = 'c{i}') AS c{i}" for i in range(8)
)
# Each table is read once: items become sums of an order, orders sums of an example.
SHOP_FEATURES = (
    f"WITH i AS (SELECT order_id, {OF_ITEMS} FROM items GROUP BY order_id),"
    " o AS (SELECT * FROM orders LEFT JOIN i USING (order_id))"
    f" SELECT t.example, t.target, c.country, c.channel, c.joined, {', '.join(_shop_features())}"
    " FROM churn t JOIN customers c USING (customer_id)"
    " LEFT JOIN o ON o.customer_id = t.customer_id AND o.ordered_at < t.as_of"
    " GROUP BY t.example, t.target, c.country, c.channel, c.joined, t.as_of"
)
# The same of one customer at one time.
ONE_CUSTOMER = (
    f"SELECT {', '.join(_shop_features())} FROM (SELECT %s::int AS customer_id, %s::timestamp AS as_of) t"
    " JOIN customers c USING (customer_id) LEFT JOIN LATERAL (SELECT o.*, i.* FROM orders o"
    f" LEFT JOIN LATERAL (SELECT {OF_ITEMS} FROM items WHERE items.order_id = o.order_id) i ON true"
    " WHERE o.customer_id = t.customer_id AND o.ordered_at < t.as_of) o ON true GROUP BY t.as_of, t.customer_id"
)
