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
'Makes a table to train on from what happened later. Entities, such as customers, have events, such as orders. The table has a
row for each entity and cut-off time, with the key, as_of (the cut-off time) and the target. The target is computed from the
entity''s events from as_of on, before as_of + horizon. With as_of => ''as_of'', cerebro.train reads only related rows from before
that time. A notice shows the call. Returns the number of rows.

The table gets a primary key. It also gets a foreign key to entity_table, if the caller may make one: deleting an entity
deletes its rows, and entity_table cannot be dropped before this table.

- entity_table, event_table: tables or views.
- target: an expression that aggregates the events of one entity in one horizon, in the columns of event_table. ''count(*) = 0''
  is true for those who leave, ''sum(amount)'' is a number, ''(array_agg(product ORDER BY ordered_at))[1]'' is the next
  product. as_of is the cut-off time; an aggregate that uses it needs a column of the events, too. A sum of no events is 0. Rows
  whose target is NULL are left out, with a notice.
- horizon: how long after as_of events count, for instance ''90 days''.
- every: the interval between cut-off times, for instance ''30 days'' or ''1 month''.
- on_columns: the columns of event_table that have the entity''s key, separated by commas. NULL: those of its foreign key to
  entity_table, or else those of the same names.
- key: the columns that identify entities. NULL: those that the foreign key refers to, or else the primary key.
- event_time: the column with the time of an event. NULL: the only one of type date or timestamp.
- starts, ends: the first and the last cut-off time. NULL: one horizon after the first event, and one horizon before the last
  one, so that no target is incomplete; of whole days, at midnight. Without starts, cut-off times are counted back from the last.
- entity_time: a column of entity_table. An entity has rows only from this time on. NULL: at all cut-off times.
- active: an interval before the cut-off time, for instance ''180 days''. Only entities with an event in it have a row. NULL: all.
- validation: the share of the cut-off times for validation: the last ones. Earlier ones whose horizon reaches into them are left
  out, because their targets would be made of the same events. 0: none is for validation, and none is left out.';
