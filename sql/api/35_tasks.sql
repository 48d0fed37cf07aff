-- Tables to train on, made of what happened to each entity later.

CREATE OR REPLACE FUNCTION cerebro.make_task(
    entity_table text,
    event_table text,
    target text,
    output_table text,
    horizon text,
    every text,
    on_columns text DEFAULT NULL,
    key text DEFAULT NULL,
    event_time text DEFAULT NULL,
    starts text DEFAULT NULL,
    ends text DEFAULT NULL,
    entity_time text DEFAULT NULL,
    active text DEFAULT NULL,
    validation double precision DEFAULT 0.2
) RETURNS bigint
LANGUAGE plpython3u
SET synchronize_seqscans = off SET jit = off
SET extra_float_digits = 1 SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET bytea_output = 'hex' AS $py$
@cerebro@
return api.make_task(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.make_task(@types@) IS
'Makes a table to train on, of what will happen to entities, such as customers, by their events, such as orders: a row for
each entity and cut-off time, with the key, as_of (the cut-off time) and the target, which is computed of the entity''s events
from as_of on, up to as_of + horizon. cerebro.train with as_of => ''as_of'' then reads of related tables only what was before.
A notice has the call. It returns the number of rows.

- entity_table, event_table: tables or views.
- target: an expression that aggregates the events of one entity in one horizon, in the columns of event_table. ''count(*) = 0''
  is true for those who leave, ''sum(amount)'' is a number, ''(array_agg(product ORDER BY ordered_at))[1]'' is the next
  product. as_of is the cut-off time. A sum of no events is 0. Rows whose target is NULL are left out, with a notice.
- horizon: how long after as_of events count, for instance ''90 days''.
- every: the interval between cut-off times, for instance ''30 days'' or ''1 month''.
- on_columns: the columns of event_table that have the entity''s key, separated by commas. NULL: those of its foreign key to
  entity_table, or else those of the same names.
- key: the columns that identify entities. NULL: those that the foreign key refers to, or else the primary key.
- event_time: the column with the time of an event. NULL: the only one of type date or timestamp.
- starts, ends: the first and the last cut-off time. NULL: one horizon after the first event, and one horizon before the last
  one, so that no target is incomplete; of whole days, at midnight. Without starts, cut-off times are counted back from the last.
- entity_time: a column of entity_table. An entity has rows only from this time on. NULL: at all cut-off times.
- active: only entities with an event in so long before the cut-off time, for instance ''180 days'', have a row at it.
- validation: the share of the cut-off times for validation, which are the last ones. Those before them whose horizons reach into
  their time are left out, because rows for training would know it. 0: no cut-off time is left out.';
