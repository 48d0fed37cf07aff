{#-
  The materialization cerebro_model trains a model table on the rows of the model's query, unless neither the rows nor the
  arguments have changed. docs/production.md#dbt is about it.

  The query becomes the view MODEL_rows. New models are trained in MODEL__new, beside the old ones. These predict until one
  transaction replaces them. The comment of MODEL_summary has the hash of the rows and arguments.
-#}

{% materialization cerebro_model, default %}
  {%- set rows = cerebro.beside(this, '_rows') -%}
  {%- set new = cerebro.beside(this, '__new') -%}
  {%- set verb = cerebro.setting('verb', 'train') -%}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}

  {% call statement('rows') -%}
    drop view if exists {{ rows }};
    create view {{ rows }} as (
      {{ sql }}
    )
  {%- endcall %}
  {#- The sessions that pack the rows see committed objects only. -#}
  {% do adapter.commit() %}

  {%- set arguments = cerebro.arguments_of(verb) -%}
  {%- set inputs = 'Inputs: ' ~ cerebro.hash_of(rows, verb ~ arguments) -%}

  {% if inputs == cerebro.trained_on(this) and not should_full_refresh() %}
    {% call noop_statement('main', message='UNCHANGED') -%}
      -- Neither the rows nor the arguments have changed since the model was trained.
    {%- endcall %}
  {% else %}
    {% do cerebro.drop_model(new) %}
    {% do adapter.commit() %}
    {% call statement('main', fetch_result=True) -%}
      select cerebro.{{ verb }}({{ cerebro.text(rows) }}, {{ cerebro.text(new) }}{{ arguments }}) as run
    {%- endcall %}
    {% do adapter.commit() %}
    {% do cerebro.say_how_good(load_result('main')['data'][0][0]) %}
    {% do cerebro.replace_model(this, new, inputs) %}
  {% endif %}

  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {% for table in cerebro.tables_of(this) if config.get('grants') %}
    {% do apply_grants(table, config.get('grants'), should_revoke=True) %}
  {% endfor %}
  {% do persist_docs(this, model) %}
  {{ adapter.commit() }}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [this.incorporate(type='table')]}) }}
{% endmaterialization %}


{#- The hash of what a model was trained on, or none. -#}
{% macro trained_on(model) %}
  {{ return(cerebro.value_of("select obj_description(to_regclass(" ~ cerebro.text(cerebro.beside(model, '_summary')) ~ "), 'pg_class')")) }}
{% endmacro %}


{#- A hash of a call, of the rows, and of the names and types of their columns. The order of the rows has no influence. -#}
{% macro hash_of(rows, call) %}
  {% set found = cerebro.value_of("
    set local timezone = 'UTC'; set local datestyle = 'ISO'; set local intervalstyle = 'postgres';
    set local extra_float_digits = 1; set local bytea_output = 'hex';
    select encode(sha256(convert_to(concat_ws(' | ', " ~ cerebro.text(call) ~ ",
             (select string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' order by attnum)
                from pg_attribute where attrelid = " ~ cerebro.text(rows) ~ "::regclass and attnum > 0),
             (select concat_ws(' ', count(*), sum(hashtextextended(row(r.*)::text, 0))) from " ~ rows ~ " r)), 'UTF8')), 'hex')
  ") %}
  {#- The settings end with the transaction. -#}
  {% do adapter.commit() %}
  {{ return(found) }}
{% endmacro %}


{#- Replaces a model by another one in the current transaction, and drops the packed rows of the old one. -#}
{% macro replace_model(model, new, inputs) %}
  {%- set packed = "(select packed_table from " ~ cerebro.beside(new, '_summary') ~ ")" -%}
  {%- set replaced = none -%}
  {% if cerebro.is_there(cerebro.beside(model, '_summary')) %}
    {%- set replaced = cerebro.value_of("select nullif(packed_table, " ~ packed ~ ") from " ~ cerebro.beside(model, '_summary')) -%}
  {% endif %}
  {% do cerebro.drop_model(model) %}
  {% for table in cerebro.tables_of(new) %}
    {% call statement('rename') -%}
      alter table {{ table }} rename to {{ adapter.quote(model.identifier ~ table.identifier[new.identifier | length:]) }}
    {%- endcall %}
  {% endfor %}
  {% call statement('mark') -%}
    update {{ cerebro.beside(model, '_summary') }}
       set model_table = format('%I.%I', {{ cerebro.text(model.schema) }}, {{ cerebro.text(model.identifier) }});
    comment on table {{ cerebro.beside(model, '_summary') }} is {{ cerebro.text(inputs) }}
  {%- endcall %}
  {% if replaced %}
    {% call statement('drop_packed') -%}
      do $do$
      begin
        drop table if exists
        {%- for ending in ['', '_summary', '_validation', '_validation_summary'] %} {{ cerebro.with_ending(replaced, ending) }}{{ ',' if not loop.last }}{% endfor %};
      exception
        when dependent_objects_still_exist or insufficient_privilege then null; -- somebody else uses them
      end
      $do$
    {%- endcall %}
  {% endif %}
{% endmacro %}


{% macro say_how_good(run) %}
  {% call statement('best', fetch_result=True) -%}
    select format('%s: trained by run %s, %s %s', {{ cerebro.text(this.identifier) }}, run, objective, objective_value)
      from cerebro.leaderboard
     where run = {{ run }} and rank = 1 and group_number is null and owner = current_user
  {%- endcall %}
  {%- for row in load_result('best')['data'] -%}
    {% do log(row[0], info=True) %}
  {%- endfor -%}
{% endmacro %}


{% macro drop_model(model) %}
  {% if cerebro.is_there(model) %}
    {% do cerebro.value_of('select cerebro.drop_model(' ~ cerebro.text(model) ~ ')') %}
  {% endif %}
{% endmacro %}
