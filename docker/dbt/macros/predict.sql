{#-
  A call of cerebro.predict, for the FROM of a query:

      select * from {{ cerebro.predict(ref('income'), 'select * from ' ~ ref('new_people'), coverage=0.9) }}

  model: a model of this project, or the name of a registered model, such as 'income@production'.
  Other arguments go to cerebro.predict by their names.
-#}
{% macro predict(model, query) %}
  {{- return('cerebro.predict(' ~ cerebro.text(model) ~ ', ' ~ cerebro.text(query) ~ cerebro.named(kwargs) ~ ')') -}}
{% endmacro %}


{#- A call of cerebro.create_predictor, for a post-hook: makes the function, or gives it the model that was trained now. -#}
{% macro create_predictor(model, function_name) %}
  {{- return('select cerebro.create_predictor(' ~ cerebro.text(model) ~ ', ' ~ cerebro.text(function_name)
             ~ ', replace => true' ~ cerebro.named(kwargs) ~ ')') -}}
{% endmacro %}


{% macro named(arguments) %}
  {%- set given = [] -%}
  {%- for name, value in arguments.items() -%}
    {%- do given.append(', ' ~ name ~ ' => ' ~ (cerebro.text(value) if value is string else value)) -%}
  {%- endfor -%}
  {{ return(given | join('')) }}
{% endmacro %}
