-- The views on what was decided about runs, and on what people asked.  The head of 20_runs.sql says which rules hold
-- for views.

CREATE OR REPLACE VIEW cerebro.decisions WITH (security_barrier) AS
SELECT run, d.decision_id, d.at, d.decision, model, m.configuration, d.epoch, d.policy AS decided_by,
       -- Texts of errors, and of the query stop_when, may contain what rows contain: a monitor does not see them. Whoever
       -- has made a request sees why it was refused.
       CASE WHEN owner = (SELECT quote_ident(current_user)::regrole) OR d.by = current_user
                 OR (d.decision <> 'refuse' AND d.policy <> 'rule')
            THEN d.reason
       END AS reason,
       -- Users may write rows of their own: whatever is no number of a model is left out.
       NULLIF(btrim(jsonb_path_query_array(
                        d.detail, '$.added[*].model ? (@.type() == "number" && @ > 0 && @ <= 2147483647)')::text, '[]'), '')
           AS added,
       d.request AS request_id, d.by AS requested_by, pg_get_userbyid(owner) AS owner
  -- Before its decisions comes the request itself.
  FROM (SELECT run, owner, model, decision_id, at, decision, epoch, policy, reason, detail, request,
               first_value(by) OVER (PARTITION BY run, owner, request ORDER BY decision_id NULLS FIRST) AS by
          FROM (SELECT run, owner, model, decision_id, at, decision, epoch, policy, reason, detail, request,
                       NULL::name AS by
                  FROM cerebro_internal._visible_decision
                 UNION ALL
                SELECT run, owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, request_id, by
                  FROM cerebro_internal._visible_request) u) d
  FULL JOIN cerebro_internal._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(d.decision_id) = 1;
COMMENT ON VIEW cerebro.decisions IS
'Each decision about a run or one of its models: what was decided, when, by whom, why, and which models it added.';
COMMENT ON COLUMN cerebro.decisions.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.decisions.decision_id IS 'Number of the decision; later decisions have larger numbers.';
COMMENT ON COLUMN cerebro.decisions.at IS 'When it was decided.';
COMMENT ON COLUMN cerebro.decisions.decision IS
'continue (the model trains on), stop, go on (a model that was stopped trains on), add (new models begin), extend (the '
'run gets more epochs), budget (the run gets another budget) or refuse (a request cannot be carried out; reason says '
'why).';
COMMENT ON COLUMN cerebro.decisions.model IS
'Number of the model within the run, from 1; NULL: the decision concerns the whole run.';
COMMENT ON COLUMN cerebro.decisions.configuration IS
'Number of the model''s configuration in its run.';
COMMENT ON COLUMN cerebro.decisions.epoch IS
'Number of epochs that the model had completed; NULL: the decision concerns the whole run.';
COMMENT ON COLUMN cerebro.decisions.decided_by IS
'The name of the search policy, or rule (the option stop_when), request (a person) or budget (the budget was spent).';
COMMENT ON COLUMN cerebro.decisions.reason IS
'Why it was decided. Of a rule (the option stop_when) visible to the owner only, and of a refusal to the owner and to '
'whoever made the request, because such texts may contain values.';
COMMENT ON COLUMN cerebro.decisions.added IS 'Numbers of the models that the decision added; NULL: none.';
COMMENT ON COLUMN cerebro.decisions.request_id IS
'The request that the decision answers, as in cerebro.requests; NULL: none.';
COMMENT ON COLUMN cerebro.decisions.requested_by IS 'The user who made the request; NULL: nobody.';
COMMENT ON COLUMN cerebro.decisions.owner IS 'The user who owns the run.';

CREATE OR REPLACE VIEW cerebro.requests WITH (security_barrier) AS
SELECT run, r.request_id, r.at, r.by,
       CASE WHEN r.action = 'add' AND r.detail #>> '{new,parent}' IS NOT NULL THEN 'clone' ELSE r.action END AS action,
       CASE WHEN num_nonnulls(m.configuration) = 1 THEN model END AS model, m.configuration,
       CASE r.action
            WHEN 'add' THEN r.detail ->> 'parameters'
            WHEN 'extend' THEN (r.detail ->> 'epochs') || ' epochs'
            WHEN 'budget' THEN r.detail::text
       END AS parameters,
       r.reason,
       CASE WHEN r.decision IS NULL THEN 'waiting' WHEN r.decision = 'refuse' THEN 'refused' ELSE 'done' END AS status,
       r.answered_at,
       CASE WHEN r.decision = 'refuse'
                 -- As in cerebro.decisions.
                 AND (owner = (SELECT quote_ident(current_user)::regrole) OR r.by = current_user)
            THEN r.answer
       END AS refusal,
       r.decision_id, pg_get_userbyid(owner) AS owner
  -- After its decisions comes the request itself, so the first one of all is the decision that answers it.
  FROM (SELECT run, owner, request_id, at, by, action, reason, detail,
               COALESCE(detail ->> 'model', detail #>> '{new,parent}')::integer AS model,
               first_value(decision_id) OVER answers AS decision_id, first_value(decision) OVER answers AS decision,
               first_value(answered_at) OVER answers AS answered_at, first_value(answer) OVER answers AS answer
          FROM (SELECT run, owner, request_id, at, by, action, reason, detail,
                       NULL::bigint AS decision_id, NULL::text AS decision, NULL::timestamptz AS answered_at,
                       NULL::text AS answer
                  FROM cerebro_internal._visible_request
                 UNION ALL
                SELECT run, owner, request, NULL, NULL, NULL, NULL, NULL, decision_id, decision, at, reason
                  FROM cerebro_internal._visible_decision
                 WHERE request IS NOT NULL) u
        WINDOW answers AS (PARTITION BY run, owner, request_id ORDER BY decision_id)) r
  FULL JOIN cerebro_internal._visible_model m USING (run, owner, model)
 WHERE num_nonnulls(r.action) = 1;
COMMENT ON VIEW cerebro.requests IS
'Each request that a user made with cerebro.stop_model, go_on, clone_model, add_configuration, extend or set_budget, and '
'its result.';
COMMENT ON COLUMN cerebro.requests.run IS 'Number of the run.';
COMMENT ON COLUMN cerebro.requests.request_id IS 'Number of the request; later requests have larger numbers.';
COMMENT ON COLUMN cerebro.requests.at IS 'When the request was made.';
COMMENT ON COLUMN cerebro.requests.by IS 'The user who made the request.';
COMMENT ON COLUMN cerebro.requests.action IS 'stop, go on, clone, add, extend or budget.';
COMMENT ON COLUMN cerebro.requests.model IS
'The model that is to stop, to go on or to be cloned; NULL for other requests.';
COMMENT ON COLUMN cerebro.requests.configuration IS 'Configuration of that model.';
COMMENT ON COLUMN cerebro.requests.parameters IS
'As the user gave them: the parameters of the new configuration (of a clone, those that change), the new number of '
'epochs, or the new budget.';
COMMENT ON COLUMN cerebro.requests.reason IS 'The reason that the user gave.';
COMMENT ON COLUMN cerebro.requests.status IS
'waiting, done or refused. A request about a model in training waits for the end of its epoch. Requests about a run '
'that no session drives wait for cerebro.resume(run).';
COMMENT ON COLUMN cerebro.requests.answered_at IS 'When it was done or refused; NULL while it waits.';
COMMENT ON COLUMN cerebro.requests.refusal IS
'Why it was refused, for the owner and for whoever made the request; NULL if it was not.';
COMMENT ON COLUMN cerebro.requests.decision_id IS
'The decision that answers it, as in cerebro.decisions; NULL while it waits.';
COMMENT ON COLUMN cerebro.requests.owner IS 'The user who owns the run.';
