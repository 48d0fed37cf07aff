-- The registry: versions of models by a name that users share (schema/75_registry.sql).

-- What each user sees follows from rights to the model: they are one's own, those of a role that one is a member of, or
-- those of an administrator.
-- What the history says now.
CREATE OR REPLACE VIEW cerebro_internal._alias_now AS
SELECT DISTINCT ON (model, alias) model, alias, version, at, by, reason
  FROM cerebro.registry_event WHERE event = 'alias' ORDER BY model, alias, id DESC;
COMMENT ON VIEW cerebro_internal._alias_now IS 'The last event of each alias. Without a version, it was removed.';
CREATE OR REPLACE VIEW cerebro_internal._right_now AS
SELECT * FROM (SELECT DISTINCT ON (model, role, "right") model, role, "right", event, at, by
                 FROM cerebro.registry_event WHERE event IN ('shared', 'unshared')
                ORDER BY model, role, "right", id DESC) e
 WHERE event = 'shared';
COMMENT ON VIEW cerebro_internal._right_now IS 'The rights that were given and not taken back.';

CREATE OR REPLACE VIEW cerebro_internal._my_registered WITH (security_barrier = true) AS
SELECT m.name AS registered_model, m.owner, m.description, m.registered_at, own.owns, own.manages,
       own.owns OR given.may_read AS may_read, own.manages OR given.may_move AS may_move, own.owns OR given.may_use AS may_use
  FROM cerebro.registered_model m
 CROSS JOIN LATERAL (SELECT pg_has_role(m.owner, 'USAGE') AS owns,
                            pg_has_role(m.owner, 'USAGE') OR pg_has_role('cerebro_admin', 'USAGE') AS manages) own
 CROSS JOIN LATERAL (
       SELECT COALESCE(bool_or(s."right" = 'read'), false) AS may_read,
              COALESCE(bool_or(s."right" = 'alias'), false) AS may_move,
              COALESCE(bool_or(s."right" IN ('use', 'read')), false) AS may_use, count(*) > 0 AS has_some
         FROM cerebro_internal._right_now s
        WHERE s.model = m.name AND pg_has_role(s.role, 'USAGE')) given
 WHERE own.manages OR given.has_some;

COMMENT ON VIEW cerebro_internal._my_registered IS
'The registered models to which the current user has a right, and what each right allows.';

CREATE OR REPLACE VIEW cerebro.registered_versions WITH (security_barrier = true) AS
SELECT m.registered_model, r.version,
       (SELECT string_agg(a.alias, ', ' ORDER BY a.alias)
          FROM cerebro_internal._alias_now a WHERE a.model = r.model AND a.version = r.version) AS aliases,
       r.at AS registered_at, r.by::name AS registered_by, r.reason,
       r.details ->> 'target' AS target, r.details ->> 'objective' AS objective,
       (r.details ->> 'objective_value')::double precision AS objective_value,
       (r.details ->> 'validation_loss')::double precision AS validation_loss,
       (r.details ->> 'training_loss')::double precision AS training_loss,
       r.details ->> 'model_table' AS model_table, (r.details ->> 'configuration')::integer AS configuration,
       (r.details ->> 'epoch')::integer AS epoch, (r.details ->> 'run')::bigint AS run, r.details ->> 'run_name' AS run_name,
       r.details ->> 'source_table' AS source_table, r.details ->> 'packed_table' AS packed_table,
       (r.details ->> 'rows')::bigint AS rows, (r.details ->> 'started_at')::timestamptz AS started_at,
       (r.details ->> 'ended_at')::timestamptz AS ended_at, r.details ->> 'cerebro_version' AS cerebro_version,
       (r.details ->> 'bytes')::bigint AS bytes, r.details ->> 'sha256' AS sha256,
       r.details ->> 'group_by' AS group_by, (r.details ->> 'groups')::integer AS groups, r.details ->> 'group_key' AS group_key,
       u.at AS unregistered_at, m.may_use, m.may_read, r.details ->> 'quality' AS quality
  FROM cerebro_internal._my_registered m
  JOIN cerebro.registry_event r ON r.model = m.registered_model AND r.event = 'registered'
  LEFT JOIN cerebro.registry_event u ON u.model = r.model AND u.version = r.version AND u.event = 'unregistered';
COMMENT ON VIEW cerebro.registered_versions IS
'The versions of the registered models to which you have a right, with what each was trained on. A version that has left the '
'registry stays in this list.';
COMMENT ON COLUMN cerebro.registered_versions.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registered_versions.version IS
'Number of the version. Where a model is named, it is called MODEL@VERSION, for instance churn@3.';
COMMENT ON COLUMN cerebro.registered_versions.aliases IS 'The aliases that name this version now, with commas.';
COMMENT ON COLUMN cerebro.registered_versions.registered_at IS 'When the version was registered.';
COMMENT ON COLUMN cerebro.registered_versions.registered_by IS 'The user who registered it.';
COMMENT ON COLUMN cerebro.registered_versions.reason IS 'Reason given to cerebro.register().';
COMMENT ON COLUMN cerebro.registered_versions.target IS 'The columns that the model predicts, with commas.';
COMMENT ON COLUMN cerebro.registered_versions.objective IS 'Metric that the run optimised.';
COMMENT ON COLUMN cerebro.registered_versions.objective_value IS 'Value of the objective. NULL: the run had none.';
COMMENT ON COLUMN cerebro.registered_versions.validation_loss IS
'Loss on the validation rows. NULL: the run had none.';
COMMENT ON COLUMN cerebro.registered_versions.training_loss IS 'Loss on the training rows.';
COMMENT ON COLUMN cerebro.registered_versions.model_table IS 'The model table that the version was copied from.';
COMMENT ON COLUMN cerebro.registered_versions.configuration IS 'The number of its configuration in that table and in the run.';
COMMENT ON COLUMN cerebro.registered_versions.epoch IS 'The epoch of the run whose weights it has.';
COMMENT ON COLUMN cerebro.registered_versions.run IS 'Number of the run that trained it, of the user who registered it.';
COMMENT ON COLUMN cerebro.registered_versions.run_name IS 'Name of that run.';
COMMENT ON COLUMN cerebro.registered_versions.source_table IS 'The table whose rows it was trained on.';
COMMENT ON COLUMN cerebro.registered_versions.packed_table IS 'The packed table that the run trained on.';
COMMENT ON COLUMN cerebro.registered_versions.rows IS
'Number of rows (or windows) in that packed table. Of the model of one group: those of the group.';
COMMENT ON COLUMN cerebro.registered_versions.started_at IS 'When the run began to train.';
COMMENT ON COLUMN cerebro.registered_versions.ended_at IS 'When the run ended.';
COMMENT ON COLUMN cerebro.registered_versions.cerebro_version IS 'The version of cerebro_db that trained it.';
COMMENT ON COLUMN cerebro.registered_versions.bytes IS 'Size of all weights of the version.';
COMMENT ON COLUMN cerebro.registered_versions.sha256 IS
'SHA-256 of the weights: those of the model on all rows, and then those of the models of groups by their numbers.';
COMMENT ON COLUMN cerebro.registered_versions.group_by IS
'The columns that tell the groups apart, with commas. NULL: the version has no models of groups.';
COMMENT ON COLUMN cerebro.registered_versions.groups IS
'Number of groups with a model of their own in the version. NULL: it has no models of groups.';
COMMENT ON COLUMN cerebro.registered_versions.group_key IS
'Of a version that is the model of one group: the values of the group, as a JSON array.';
COMMENT ON COLUMN cerebro.registered_versions.unregistered_at IS
'When the version left the registry. NULL: it is there.';
COMMENT ON COLUMN cerebro.registered_versions.may_use IS 'Whether you may predict with it.';
COMMENT ON COLUMN cerebro.registered_versions.may_read IS 'Whether you may read its weights.';
COMMENT ON COLUMN cerebro.registered_versions.quality IS
'How good it was on the rows of its calibration, beside an answer that is the same for every row. NULL: it was not calibrated.';

CREATE OR REPLACE VIEW cerebro.registered_aliases WITH (security_barrier = true) AS
SELECT m.registered_model, a.alias, a.version, a.at AS set_at, a.by::name AS set_by, a.reason
  FROM cerebro_internal._my_registered m
  JOIN cerebro_internal._alias_now a ON a.model = m.registered_model
 WHERE a.version IS NOT NULL;
COMMENT ON VIEW cerebro.registered_aliases IS 'The aliases of registered models, such as production.';
COMMENT ON COLUMN cerebro.registered_aliases.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registered_aliases.alias IS
'Name of the alias. Where a model is named, the version is called MODEL@ALIAS, for instance churn@production.';
COMMENT ON COLUMN cerebro.registered_aliases.version IS 'The version that it names now.';
COMMENT ON COLUMN cerebro.registered_aliases.set_at IS 'Since when it names this version.';
COMMENT ON COLUMN cerebro.registered_aliases.set_by IS 'The user who set it.';
COMMENT ON COLUMN cerebro.registered_aliases.reason IS 'Reason given to cerebro.set_alias() or cerebro.roll_back().';

CREATE OR REPLACE VIEW cerebro.registered_models WITH (security_barrier = true) AS
SELECT m.registered_model, pg_get_userbyid(m.owner) AS owner, m.description, m.registered_at,
       (SELECT count(*) FROM cerebro.registered_versions v
         WHERE v.registered_model = m.registered_model AND v.unregistered_at IS NULL) AS versions,
       (SELECT max(v.version) FROM cerebro.registered_versions v
         WHERE v.registered_model = m.registered_model AND v.unregistered_at IS NULL) AS latest,
       (SELECT string_agg(a.alias || '@' || a.version, ', ' ORDER BY a.alias) FROM cerebro.registered_aliases a
         WHERE a.registered_model = m.registered_model) AS aliases,
       m.may_use, m.may_read, m.may_move, m.owns
  FROM cerebro_internal._my_registered m;
COMMENT ON VIEW cerebro.registered_models IS 'The registered models to which you have a right.';
COMMENT ON COLUMN cerebro.registered_models.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registered_models.owner IS 'The user whose model it is.';
COMMENT ON COLUMN cerebro.registered_models.description IS 'Description given to cerebro.register() with the first version.';
COMMENT ON COLUMN cerebro.registered_models.registered_at IS 'When the first version was registered.';
COMMENT ON COLUMN cerebro.registered_models.versions IS 'Number of versions that are there.';
COMMENT ON COLUMN cerebro.registered_models.latest IS 'The highest of them, which is called MODEL@latest.';
COMMENT ON COLUMN cerebro.registered_models.aliases IS 'Each alias with the version that it names, with commas.';
COMMENT ON COLUMN cerebro.registered_models.may_use IS 'Whether you may predict with it.';
COMMENT ON COLUMN cerebro.registered_models.may_read IS 'Whether you may read its weights.';
COMMENT ON COLUMN cerebro.registered_models.may_move IS 'Whether you may move its aliases.';
COMMENT ON COLUMN cerebro.registered_models.owns IS 'Whether you may register versions and share the model.';

CREATE OR REPLACE VIEW cerebro.registered_rights WITH (security_barrier = true) AS
SELECT m.registered_model, pg_get_userbyid(s.role)::text AS role, s."right", s.at AS shared_at, s.by::name AS shared_by
  FROM cerebro_internal._my_registered m
  JOIN cerebro_internal._right_now s ON s.model = m.registered_model
 WHERE EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.role);
COMMENT ON VIEW cerebro.registered_rights IS
'The rights to registered models that cerebro.share() has given. The owner of a model has all rights.';
COMMENT ON COLUMN cerebro.registered_rights.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registered_rights.role IS 'The role, whose members have the right, too.';
COMMENT ON COLUMN cerebro.registered_rights."right" IS
'use: predict with the model. read: also read its weights. alias: move its aliases.';
COMMENT ON COLUMN cerebro.registered_rights.shared_at IS 'When the right was given.';
COMMENT ON COLUMN cerebro.registered_rights.shared_by IS 'The user who gave it.';

CREATE OR REPLACE VIEW cerebro.registry_history WITH (security_barrier = true) AS
SELECT m.registered_model, e.id, e.at, e.by::name AS by, e.event, e.version, e.alias, pg_get_userbyid(e.role)::text AS role,
       e."right", e.reason
  FROM cerebro_internal._my_registered m
  JOIN cerebro.registry_event e ON e.model = m.registered_model;
COMMENT ON VIEW cerebro.registry_history IS
'Who did what with the registered models to which you have a right. Nothing is ever removed from it.';
COMMENT ON COLUMN cerebro.registry_history.registered_model IS 'Name of the registered model.';
COMMENT ON COLUMN cerebro.registry_history.id IS 'Number of the event; later events have higher numbers.';
COMMENT ON COLUMN cerebro.registry_history.at IS 'When it was.';
COMMENT ON COLUMN cerebro.registry_history.by IS 'The user who did it.';
COMMENT ON COLUMN cerebro.registry_history.event IS
'registered, unregistered, alias (an alias was set; without a version, removed), shared, or unshared.';
COMMENT ON COLUMN cerebro.registry_history.version IS 'Number of the version.';
COMMENT ON COLUMN cerebro.registry_history.alias IS 'Name of the alias.';
COMMENT ON COLUMN cerebro.registry_history.role IS 'The role that was given a right, or lost it.';
COMMENT ON COLUMN cerebro.registry_history."right" IS 'The right: use, read or alias.';
COMMENT ON COLUMN cerebro.registry_history.reason IS 'Reason that the user gave.';

-- Without subqueries that refer to another table: of their parameters, Greenplum 7 sends the segments some that nobody has
-- set, and crashes now and then.
CREATE OR REPLACE FUNCTION cerebro_internal._registered(reference text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT '"cerebro_registry"."' || v.registered_model || '@' || v.version || '"'
  FROM cerebro.registered_versions v
  LEFT JOIN cerebro.registered_aliases a
         ON a.registered_model = v.registered_model AND a.version = v.version
            AND a.alias = split_part(lower(btrim(reference)), '@', 2)
 WHERE v.registered_model = split_part(lower(btrim(reference)), '@', 1) AND v.unregistered_at IS NULL
   AND reference !~ '@.*@'
   AND (v.version::text = ltrim(split_part(lower(btrim(reference)), '@', 2), '0') OR a.version IS NOT NULL
        OR split_part(lower(btrim(reference)), '@', 2) = 'latest')
 ORDER BY v.version DESC
 LIMIT 1
$$;
COMMENT ON FUNCTION cerebro_internal._registered(@types@) IS
'The model table of a registered model. NULL: there is none to which the caller has a right.';

-- It runs what a function of ours has prepared in the memory of this session; a call from SQL finds nothing prepared.
CREATE OR REPLACE FUNCTION cerebro_internal._as_registry() RETURNS void
LANGUAGE plpython3u SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $py$
@cerebro@
return api.run_step(plpy)
$py$;
ALTER FUNCTION cerebro_internal._as_registry() OWNER TO cerebro_registry;
COMMENT ON FUNCTION cerebro_internal._as_registry() IS
'A step of cerebro.register() and other functions of the registry that needs the rights of its role.';

CREATE OR REPLACE FUNCTION cerebro.registered_table(reference text) RETURNS text
LANGUAGE plpython3u AS $py$
@cerebro@
return api.registered_table(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.registered_table(@types@) IS
'Returns the model table of a registered model, with its schema.

- reference: MODEL@ALIAS, MODEL@VERSION or MODEL@latest.';

CREATE OR REPLACE FUNCTION cerebro.register(
    registered_model    text,
    model_table   text,
    configuration integer DEFAULT NULL,
    alias         text    DEFAULT NULL,
    description   text    DEFAULT NULL,
    reason        text    DEFAULT NULL,
    group_value   text    DEFAULT NULL,
    merged        boolean DEFAULT false
) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.register(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.register(@types@) IS
'Adds a version of a registered model and returns its number. The version is a copy, which nobody can change, and which stays
when the model table or its run is dropped. Functions that predict, judge or export take MODEL@ALIAS, MODEL@VERSION and
MODEL@latest wherever they take a model table. Of a table with models of groups, the version has the model on all rows and
the model of each group with which cerebro.predict predicts.

- registered_model: 1 to 40 lower-case letters, digits and underscores. A new name becomes yours; versions of a name can be added
  by its owner and by members of that role.
- model_table: the table of trained models, or another registered model.
- configuration: the number of the configuration. NULL: the best one, as cerebro.predict chooses it.
- alias: an alias that names this version from now on, for instance production.
- description: of the model, for a new name.
- reason: stands in cerebro.registry_history.
- group_value: a group_value or a group_key of the table MODEL_groups. The version is the model of this group alone, without
  groups. NULL: all models that predict.
- merged: adds the adapters (LoRA, biases) to the weights of their layers. The version is then a plain model with whole weights,
  and refers to no body. A model with a bottleneck is refused. false: it has its adapters.';

CREATE OR REPLACE FUNCTION cerebro.set_alias(
    registered_model text, alias text, version integer, reason text DEFAULT NULL
) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.set_alias(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.set_alias(@types@) IS
'Lets an alias name a version of a registered model. Calls that name the model by the alias use this version as soon as the
transaction has committed. The owner of the model may do that, cerebro_admin, and who has the right alias.

- registered_model: the registered model.
- alias: 1 to 40 lower-case letters, digits and underscores, for instance production.
- version: the version that it names from now on. NULL removes the alias.
- reason: stands in cerebro.registry_history.';

CREATE OR REPLACE FUNCTION cerebro.roll_back(registered_model text, alias text, reason text DEFAULT NULL) RETURNS integer
LANGUAGE plpython3u AS $py$
@cerebro@
return api.roll_back(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.roll_back(@types@) IS
'Lets an alias name the version that it named before, and returns its number. A second call goes back to the
newer one.

- registered_model: the registered model.
- alias: its alias.
- reason: stands in cerebro.registry_history.';

CREATE OR REPLACE FUNCTION cerebro.unregister(registered_model text, version integer, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.unregister(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.unregister(@types@) IS
'Removes the tables of a version from the registry. Its number is never used again, and its history stays. A version that an
alias names is an error. Packed rows that you have not named go with it, as with cerebro.drop_model.

- registered_model: the registered model, which must be yours; cerebro_admin may name any.
- version: the number of the version.
- reason: stands in cerebro.registry_history.';

CREATE OR REPLACE FUNCTION cerebro.share(registered_model text, role text, "right" text DEFAULT 'use') RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.share(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.share(@types@) IS
'Gives a role a right to all versions of a registered model, those to come, too.

- registered_model: the registered model, which must be yours.
- role: the role. Members of it have the right, too; cerebro_user stands for all users of cerebro_db.
- right: use allows to predict with the model and to judge it, without reading its weights. read allows to read the weights,
  too, for instance to export it. alias allows to move the aliases, such as production.';

CREATE OR REPLACE FUNCTION cerebro.unshare(registered_model text, role text, "right" text DEFAULT 'use') RETURNS void
LANGUAGE plpython3u AS $py$
@cerebro@
return api.unshare(plpy, @by_name@)
$py$;
COMMENT ON FUNCTION cerebro.unshare(@types@) IS
'Takes a right from a role that cerebro.share has given it. The arguments are those of cerebro.share.';
