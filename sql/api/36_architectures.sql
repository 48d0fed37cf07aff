-- Architectures by name, for the configurations of the three verbs.

CREATE OR REPLACE VIEW cerebro.architectures WITH (security_barrier = true) AS
SELECT name, pg_get_userbyid(owner) AS owner, parameters AS parameter_names,
       COALESCE(octet_length(weights), (SELECT sum(octet_length(w.payload))::bigint
                                          FROM cerebro.added_weights w
                                         WHERE w.owner = a.owner AND w.name = a.name)) / 4 AS weights,
       description, added_at
  FROM cerebro.added_architecture a
 WHERE owner = (SELECT quote_ident(current_user)::regrole) AND NOT dropped;
COMMENT ON VIEW cerebro.architectures IS 'The architectures that you have added with cerebro.add_architecture().';
COMMENT ON COLUMN cerebro.architectures.name IS 'Name of the architecture, as configurations and spaces refer to it.';
COMMENT ON COLUMN cerebro.architectures.owner IS 'The user who added it: you.';
COMMENT ON COLUMN cerebro.architectures.parameter_names IS
'The parameters of the architecture, which configurations give values.';
COMMENT ON COLUMN cerebro.architectures.weights IS
'How many weights training starts from. NULL: it starts from random weights.';
COMMENT ON COLUMN cerebro.architectures.description IS 'Description given with the architecture.';
COMMENT ON COLUMN cerebro.architectures.added_at IS 'When the architecture was added.';

CREATE OR REPLACE FUNCTION cerebro.add_architecture(
    name            text,
    architecture    json,
    initial_weights bytea DEFAULT NULL,
    description     text  DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.add_architecture(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.add_architecture(@types@) IS
'Adds an architecture by a name, which the configurations of cerebro.fit and the spaces of cerebro.search and cerebro.train
can then name. Each user has names of their own. Architectures with layers that can execute code (Lambda and others) are
refused.

- architecture: what model.to_json() returns in Keras 2 or Keras 3. It can have parameters: "units": "$width" stands for
  a value, and in the list of layers of a Sequential model {"repeat": "$depth", "layers": [...]} stands for layers that
  are repeated. A configuration gives them values: {"architecture": "name", "width": 64, "depth": 2}.
- initial_weights: the arrays of model.get_weights(), flattened and concatenated, as float32. Models start from
  them. NULL: training starts from random weights. A statement with weights as text can have about 250 MB of them.
  The method add_architecture of the Python client sends weights of any size.';

CREATE OR REPLACE FUNCTION cerebro_internal._drop_architecture(gone text, whose name) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    -- Here the caller is not known any more, but only the owner can have written the row that says dropped.
    DELETE FROM cerebro.added_weights
     WHERE name = gone AND owner = quote_ident(whose)::regrole
       AND EXISTS (SELECT FROM cerebro.added_architecture d
                    WHERE d.name = gone AND d.owner = quote_ident(whose)::regrole AND d.dropped);
    DELETE FROM cerebro.added_architecture
     WHERE name = gone AND owner = quote_ident(whose)::regrole
       AND EXISTS (SELECT FROM cerebro.added_architecture d
                    WHERE d.name = gone AND d.owner = quote_ident(whose)::regrole AND d.dropped);
$$;
COMMENT ON FUNCTION cerebro_internal._drop_architecture(@types@) IS
'Deletes an architecture whose owner has recorded that it is dropped. Called by cerebro.drop_architecture().';

CREATE OR REPLACE FUNCTION cerebro.drop_architecture(name text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL OR NOT EXISTS (SELECT FROM cerebro.architectures a WHERE a.name = $1) THEN
        RAISE EXCEPTION 'cerebro.drop_architecture: you have added no architecture %', COALESCE(quote_literal(left($1, 80)), 'NULL')
              USING ERRCODE = 'undefined_object', HINT = 'SELECT name FROM cerebro.architectures lists yours.';
    END IF;
    INSERT INTO cerebro.added_architecture (name, dropped) VALUES ($1, true);
    PERFORM cerebro_internal._drop_architecture($1, current_user);
END
$$;
COMMENT ON FUNCTION cerebro.drop_architecture(@types@) IS
'Removes an architecture that you have added. Runs that were made with it keep what they need of it.';
