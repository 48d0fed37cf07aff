{#- A table or view in the schema of a model, named after it. -#}
{% macro beside(model, ending) %}
  {{ return(model.include(database=false).incorporate(path={'identifier': model.identifier ~ ending})) }}
{% endmacro %}


{#- The model table and the tables beside it that are there. -#}
{% macro tables_of(model) %}
  {%- set found = [] -%}
  {%- for ending in ['', '_info', '_summary', '_weights', '_groups'] if cerebro.is_there(cerebro.beside(model, ending)) -%}
    {%- do found.append(cerebro.beside(model, ending)) -%}
  {%- endfor -%}
  {{ return(found) }}
{% endmacro %}


{#- A text of SQL. A relation is written without its database, which cerebro_db does not take. -#}
{% macro text(value) %}
  {%- set written = value if value is string else value.include(database=false) | string -%}
  {{ return("'" ~ written | replace("'", "''") ~ "'") }}
{% endmacro %}


{% macro value_of(query) %}
  {% call statement('value', fetch_result=True) -%}
    {{ query }}
  {%- endcall %}
  {{ return(load_result('value')['data'][0][0]) }}
{% endmacro %}


{% macro is_there(relation) %}
  {{ return(cerebro.value_of('select to_regclass(' ~ cerebro.text(relation) ~ ') is not null')) }}
{% endmacro %}
