-- The views of the schema cerebro_bi.  Each has the name, the columns, the comments and the readers of a view of the schema
-- cerebro, and no other types than those below: BI tools cannot group or filter by JSON and arrays, and some know no name.
-- Documents, arrays and names are texts here.
--
-- They are made from the catalog, so a new view needs nothing here. They read the views of the schema cerebro, which say
-- who sees which rows. A migration that drops a view of the schema cerebro drops this one before.

DO $bi$
DECLARE
    scalar CONSTANT regtype[] := ARRAY['smallint', 'integer', 'bigint', 'double precision', 'text', 'boolean', 'timestamptz'];
    shown  record;
    told   record;
    reader name;
BEGIN
    FOR shown IN
        SELECT c.oid, c.relname AS name, obj_description(c.oid, 'pg_class') AS comment,
               string_agg(format(CASE WHEN a.atttypid = ANY (scalar) THEN '%1$I'
                                      WHEN t.typcategory = 'A' THEN 'array_to_string(%1$I, '', '') AS %1$I'
                                      ELSE '%1$I::text AS %1$I' END, a.attname), ', ' ORDER BY a.attnum) AS columns
          FROM pg_class c
          JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          JOIN pg_type t ON t.oid = a.atttypid
         WHERE c.relnamespace = 'cerebro'::regnamespace AND c.relkind = 'v'
         GROUP BY c.oid, c.relname
    LOOP
        EXECUTE format('CREATE OR REPLACE VIEW cerebro_bi.%1$I WITH (security_barrier) AS SELECT %2$s FROM cerebro.%1$I',
                       shown.name, shown.columns);
        EXECUTE format('COMMENT ON VIEW cerebro_bi.%I IS %L', shown.name, shown.comment);
        FOR told IN
            SELECT attname AS name, col_description(attrelid, attnum) AS comment
              FROM pg_attribute
             WHERE attrelid = shown.oid AND attnum > 0 AND NOT attisdropped
        LOOP
            EXECUTE format('COMMENT ON COLUMN cerebro_bi.%I.%I IS %L', shown.name, told.name, told.comment);
        END LOOP;
        EXECUTE format('REVOKE ALL ON cerebro_bi.%I FROM PUBLIC', shown.name);
        FOREACH reader IN ARRAY ARRAY['cerebro_user', 'cerebro_monitor']
        LOOP
            IF has_table_privilege(reader, shown.oid, 'SELECT') THEN
                EXECUTE format('GRANT SELECT ON cerebro_bi.%I TO %I', shown.name, reader);
            END IF;
        END LOOP;
    END LOOP;
END
$bi$;
