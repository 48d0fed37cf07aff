{#- The arguments of the call after the first two, as SQL: those that the model's config has. -#}
{% macro arguments_of(verb) %}
  {%- set given, known = [], ['verb'] -%}
  {% call statement('signature', fetch_result=True) -%}
    select argument.name, format_type(argument.type, null)
      from pg_proc p
     cross join lateral unnest(p.proargnames, p.proargtypes::oid[]) with ordinality as argument (name, type, place)
     where p.pronamespace = 'cerebro'::regnamespace and p.proname = {{ cerebro.text(verb) }}
       and p.proname in ('train', 'search', 'fit')
       and argument.name not in ('source_table', 'model_table', 'packed_table', 'wait', 'dry_run', 'warm_start', 'replace')
     order by argument.place
  {%- endcall %}
  {%- for name, type in load_result('signature')['data'] -%}
    {%- do known.append(name) -%}
    {%- set value = cerebro.setting(name, this.identifier if name == 'run_name' else none) -%}
    {%- if value is not none -%}
      {%- do given.append(', ' ~ name ~ ' => ' ~ cerebro.text(cerebro.written(value, type)) ~ '::' ~ type) -%}
    {%- endif -%}
  {%- endfor -%}
  {%- if not given -%}
    {%- do exceptions.raise_compiler_error("verb is '" ~ verb ~ "'; it must be train, search or fit.") -%}
  {%- endif -%}
  {%- for name in model.get('unrendered_config', {}) if name not in known + cerebro.settings_of_dbt() -%}
    {%- do exceptions.warn(this.identifier ~ ': ' ~ name ~ ' has no effect. It is no argument of cerebro.' ~ verb
                           ~ ', or the package sets it.') -%}
  {%- endfor -%}
  {{ return(given | join('')) }}
{% endmacro %}


{% macro settings_of_dbt() %}
  {{ return(['access', 'alias', 'contract', 'database', 'docs', 'enabled', 'full_refresh', 'grants', 'group', 'materialized',
             'meta', 'packages', 'persist_docs', 'post-hook', 'post_hook', 'pre-hook', 'pre_hook', 'quoting', 'schema',
             'tags']) }}
{% endmacro %}


{#- A setting of the model: a key of its config, or of meta in it. -#}
{% macro setting(name, default=none) %}
  {%- set meta = config.get('meta') or {} -%}
  {{ return(meta[name] if name in meta else config.get(name, default)) }}
{% endmacro %}


{#- A value as the text that PostgreSQL reads: lists of names with commas, other lists and objects as JSON. -#}
{% macro written(value, type) %}
  {%- set is_list = value is sequence and value is not string and value is not mapping -%}
  {%- if is_list and type == 'text' and value and value[0] is string -%}
    {{ return(value | join(', ')) }}
  {%- elif is_list or value is mapping -%}
    {{ return(tojson(value)) }}
  {%- endif -%}
  {{ return(value | string) }}
{% endmacro %}
