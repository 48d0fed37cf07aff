"""Each function that an ordinary user may call, called with things of a stranger's.

A call names a model, a packed table or a selection table, of the stranger's or a copy of it.  What these tables say
names the traps of ``strangers.py``.  A function that is in none of the lists makes ``test_names_in_documents.py`` fail.
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS = "'SELECT * FROM {schema}.folk'"
VECTORS = "'SELECT * FROM {schema}.vectors'"
ONE = """$$[{{"architecture": "mlp", "units": 4}}]$$"""
TWO = """$$[{{"architecture": "mlp", "units": 4}}, {{"architecture": "mlp", "units": 8}}]$$"""
IN_SESSION = """options => '{{"execution": "session"}}'"""
# What the stranger writes into is what the call names, and what stands beside it.
DOCUMENTS = {
    "{model}": ("guesses_summary", "guesses_info"),
    "{registered}": ("guesses_summary", "guesses_info"),
    "{name}": ("guesses_summary", "guesses_info"),
    "{grouped}": ("grouped_summary", "grouped_info", "grouped_groups"),
    "{madlib}": ("models_summary", "models_info"),
    "{packed}": ("guesses_packed_summary", "guesses_packed_validation_summary"),
    "{plain}": ("packed_summary",),
    "{selection}": ("mst_summary", "mst", "arch"),
    "{arch}": ("arch",),
}


@dataclass(frozen=True)
class Call:
    """``alone``: it refuses transactions, so what it makes has to be removed after it.  ";;" is between such calls."""

    sql: str
    slow: bool = False
    alone: bool = False

    @property
    def documents(self) -> set[str]:
        """The tables that it reads documents from."""
        return {table for named, tables in DOCUMENTS.items() if named in self.sql for table in tables}


def _on_rows(name: str, more: str = "") -> Call:
    return Call(f"SELECT * FROM cerebro.{name}('{{model}}', {ROWS}{more})")


CALLS: dict[str, list[Call]] = {
    # -- serving
    "cerebro.predict": [_on_rows("predict"), _on_rows("predict", ", calibrated => true"),
                        Call(f"SELECT * FROM cerebro.predict('{{madlib}}', {VECTORS})"),
                        Call(f"SELECT * FROM cerebro.predict('{{grouped}}', {ROWS})")],
    "cerebro.embed": [_on_rows("embed"), Call(f"SELECT * FROM cerebro.embed('{{madlib}}', {VECTORS})")],
    "cerebro.predict_into": [
        Call(f"SELECT cerebro.predict_into('{{model}}', '{{schema}}.folk', '{{schema}}.out'{more})")
        for more in ("", ", keep => '*'")
    ],
    "cerebro.create_predictor": [
        Call("SELECT cerebro.create_predictor('{model}', '{schema}.guess');"
             " SELECT {schema}.guess(a, b) FROM {schema}.folk LIMIT 3"),
        Call("SELECT cerebro.create_predictor('{madlib}', '{schema}.guess')"),
    ],
    "cerebro.evaluate": [_on_rows("evaluate"), _on_rows("evaluate", ", coverage => 0.9"),
                         Call("SELECT * FROM cerebro.evaluate('{model}', '{packed}')"),
                         Call("SELECT * FROM cerebro.evaluate('{model}')")],
    "cerebro.confusion_matrix": [_on_rows("confusion_matrix"),
                                 Call(f"SELECT * FROM cerebro.confusion_matrix('{{grouped}}', {ROWS})")],
    "cerebro.class_metrics": [_on_rows("class_metrics")],
    "cerebro.roc_curve": [_on_rows("roc_curve")],
    "cerebro.precision_recall": [_on_rows("precision_recall")],
    "cerebro.calibration": [_on_rows("calibration")],
    "cerebro.residuals": [_on_rows("residuals")],
    "cerebro.mistakes": [_on_rows("mistakes")],
    "cerebro.importance": [_on_rows("importance"), 
                           Call("SELECT * FROM cerebro.importance('{model}', '{packed}')", slow=True),
                           Call("SELECT * FROM cerebro.importance('{model}')", slow=True)],
    "cerebro.explain": [_on_rows("explain"), Call(f"SELECT * FROM cerebro.explain('{{grouped}}', {ROWS})")],
    "cerebro.drift": [_on_rows("drift")],
    "cerebro.backtest": [_on_rows("backtest")],
    "cerebro.related_rows": [Call(f"SELECT cerebro.related_rows('{{model}}', {ROWS}, '{{schema}}.out')")],
    "cerebro.calibrate": [Call("SELECT * FROM cerebro.calibrate('{model}')"), _on_rows("calibrate"),
                          Call("SELECT * FROM cerebro.calibrate('{model}', '{packed}')")],
    "cerebro.ensemble": [Call("SELECT cerebro.ensemble('{model}', '{schema}.out')", alone=True),
                         Call("SELECT cerebro.ensemble('{model}', '{schema}.out', all_join => true)", alone=True)],
    # -- packed rows
    "cerebro.pack": [Call("SELECT cerebro.pack('{packed}', '{schema}.out', 'y')")],
    "cerebro.pack_plain": [Call("SELECT cerebro.pack_plain('{packed}', '{schema}.out', 'y', 'x')")],
    "cerebro.pack_like": [
        Call("SELECT cerebro.pack_like('{schema}.folk', '{schema}.out', 'y', 'a, b', '{packed}')"),
        Call("SELECT cerebro.pack_like('{schema}.folk', '{schema}.out', 'y', NULL, '{packed}')"),
        Call("SELECT cerebro.pack_like('{schema}.vectors', '{schema}.out', 'y', 'x', '{plain}')"),
    ],
    "cerebro.append": [Call("SELECT cerebro.append('{packed}', '{schema}.folk')"),
                       Call("SELECT cerebro.append('{packed}', '{schema}.folk', false)")],
    "cerebro.prepared_columns": [Call("SELECT * FROM cerebro.prepared_columns('{packed}')"),
                                 Call("SELECT * FROM cerebro.prepared_columns('{model}')")],
    "cerebro.architecture": [Call("SELECT cerebro.architecture('mlp', '{packed}')"),
                             Call("SELECT cerebro.architecture('cnn', '{plain}')")],
    # -- training
    "cerebro.fit": [
        Call(f"SELECT cerebro.fit('{{packed}}', '{{schema}}.out', {ONE}, epochs => 1, {IN_SESSION})", alone=True),
        Call("SELECT cerebro.fit('{plain}', '{schema}.out', '{selection}', epochs => 1, " + IN_SESSION + ")",
             alone=True),
        Call(f"SELECT cerebro.fit('{{packed}}', '{{model}}', {ONE}, epochs => 1, warm_start => true, {IN_SESSION})",
             alone=True),
        Call(f"SELECT cerebro.fit('{{packed}}', '{{schema}}.out', {ONE}, epochs => 1, dry_run => true)"),
    ],
    "cerebro.search": [
        Call("SELECT cerebro.search('{packed}', '{schema}.out', $${{\"units\": [4, 8]}}$$, max_configurations => 1,"
             " epochs => 1, " + IN_SESSION + ")", slow=True, alone=True),
        Call("SELECT cerebro.search('{packed}', '{schema}.out', $${{\"units\": [4, 8]}}$$, max_configurations => 1,"
             " dry_run => true)"),
    ],
    "cerebro.train": [
        Call("SELECT cerebro.train('{packed}', '{schema}.out', budget => '2 seconds')", slow=True, alone=True),
        Call("SELECT cerebro.train('{packed}', '{schema}.out', dry_run => true)"),
    ],
    "cerebro.madlib_fit_multiple_model": [
        Call("SELECT cerebro.madlib_fit_multiple_model('{plain}', '{schema}.out', '{selection}', 1, " + IN_SESSION
             + ")", alone=True),
        Call("SELECT cerebro.madlib_fit_multiple_model('{plain}', '{madlib}', '{selection}', 1, warm_start => true,"
             " " + IN_SESSION + ")", alone=True),
    ],
    # -- the registry
    "cerebro.register": [Call("SELECT cerebro.register('{name}', '{model}', 1)"),
                         Call("SELECT cerebro.register('{name}', '{model}');"
                              f" SELECT * FROM cerebro.predict('{{name}}@1', {ROWS})"),
                         Call("SELECT cerebro.register('{name}', '{madlib}')"),
                         Call("SELECT cerebro.register('{name}', '{grouped}');"
                              f" SELECT * FROM cerebro.predict('{{name}}@1', {ROWS})")],
    "cerebro.retrain": [
        Call("SELECT * FROM cerebro.retrain('{name}', 'production')", slow=True, alone=True),
        Call("SELECT * FROM cerebro.retrain('{name}', 'production', epochs => 1, if_unchanged => true)", slow=True,
             alone=True),
        Call("SELECT * FROM cerebro.retrain('{name}', 'production', source_table => '{schema}.folk', epochs => 1)",
             slow=True, alone=True),
        Call(f"SELECT * FROM cerebro.retrain('{{name}}', 'production', query => {ROWS}, epochs => 1)", slow=True,
             alone=True),
        Call("SELECT * FROM cerebro.retrain('{name}', 'production', source_table => '{schema}.folk', validation_table"
             " => '{schema}.folk_2', epochs => 1, if_unchanged => true)", slow=True, alone=True),
        # The log of the victim's run has what the stranger's packed table says about itself.
        Call(f"SELECT cerebro.fit('{{packed}}', '{{schema}}.out', {TWO}, epochs => 1, {IN_SESSION});;"
             "SELECT cerebro.register('{name}_on', '{schema}.out', 1, 'production');;"
             "SELECT * FROM cerebro.retrain('{name}_on', 'production', if_unchanged => true);;"
             "SELECT cerebro.ensemble('{schema}.out', '{schema}.all');;"
             "SELECT * FROM cerebro.calibrate('{schema}.out')",
             slow=True, alone=True),
    ],
    "cerebro.registered_table": [Call("SELECT cerebro.registered_table('{registered}')")],
    "cerebro.set_alias": [
        Call("SELECT cerebro.register('{name}', '{model}'), cerebro.set_alias('{name}', 'x', 1);"
             " SELECT cerebro.register('{name}', '{model}'), cerebro.set_alias('{name}', 'x', 2);"
             " SELECT cerebro.roll_back('{name}', 'x'), cerebro.unregister('{name}', 2)")],
    "cerebro.share": [Call("SELECT cerebro.register('{name}', '{model}');"
                           " SELECT cerebro.share('{name}', 'cerebro_user', 'read');"
                           " SELECT cerebro.unshare('{name}', 'cerebro_user', 'read')")],
    "cerebro.drop_model": [Call("SELECT cerebro.drop_model('{model}')"), Call("SELECT cerebro.drop_model('{madlib}')")],
    # -- runs
    "cerebro.materialize": [Call("SELECT cerebro.materialize({run}, '{schema}.out')", alone=True)],
    "cerebro.resume": [Call("SELECT cerebro.resume({run}, epochs => 2)", alone=True)],
    "cerebro.forget": [Call("SELECT cerebro.forget({run}, '{own}')")],
    "cerebro.cancel": [Call("SELECT cerebro.cancel({run}, '{own}')")],
    "cerebro.wait": [Call("SELECT cerebro.wait({run}, 0.1)")],
    "cerebro.plan": [Call("SELECT * FROM cerebro.plan({run})")],
    "cerebro.stop_model": [Call("SELECT cerebro.stop_model({run}, 1, owner => '{own}')")],
    "cerebro.go_on": [Call("SELECT cerebro.go_on({run}, 1, owner => '{own}')")],
    "cerebro.clone_model": [Call("SELECT cerebro.clone_model({run}, 1, owner => '{own}')")],
    "cerebro.add_configuration": [
        Call("SELECT cerebro.add_configuration({run}, $${{\"units\": 4}}$$, owner => '{own}')")],
    "cerebro.extend": [Call("SELECT cerebro.extend({run}, 3, owner => '{own}')")],
    "cerebro.set_budget": [Call("SELECT cerebro.set_budget({run}, '1 minute', owner => '{own}')")],
    "cerebro.doctor": [Call("SELECT * FROM cerebro.doctor(1)", slow=True)],
    # -- MADlib
    "cerebro.convert_madlib_table": [
        # Without these columns the tables are those that MADlib itself makes.
        Call("ALTER TABLE {madlib}_summary DROP COLUMN run, DROP COLUMN seed, DROP COLUMN layout;"
             " ALTER TABLE {madlib}_info DROP status, DROP reason, DROP which, DROP epoch;"
             " SELECT cerebro.convert_madlib_table('{madlib}')"),
        Call("ALTER TABLE {madlib}_summary DROP COLUMN run, DROP COLUMN seed, DROP COLUMN layout;"
             " ALTER TABLE {madlib}_info DROP status, DROP reason, DROP which, DROP epoch;"
             " SELECT cerebro.convert_madlib_table('{madlib}', '{plain}')"),
        Call("ALTER TABLE {plain}_summary DROP COLUMN layout, DROP COLUMN segments, DROP COLUMN seed, DROP COLUMN rows,"
             " ADD dependent_varname text[] DEFAULT '{{y}}', ADD independent_varname text[] DEFAULT '{{x}}',"
             " ADD normalizing_const real; SELECT cerebro.convert_madlib_table('{plain}')"),
    ],
    "madlib.madlib_keras_predict": [
        Call("SELECT madlib.madlib_keras_predict('{madlib}', '{schema}.vectors', 'id', 'x', '{schema}.out', 'prob',"
             " false, 1)"),
        Call("SELECT madlib.madlib_keras_predict('{model}', '{schema}.vectors', 'id', 'x', '{schema}.out', 'prob',"
             " false, 1)"),
    ],
    "madlib.madlib_keras_predict_byom": [
        Call("SELECT madlib.madlib_keras_predict_byom('{arch}', 1, '{schema}.vectors', 'id', 'x', '{schema}.out')")],
    "madlib.madlib_keras_evaluate": [
        Call("SELECT madlib.madlib_keras_evaluate('{madlib}', '{plain}', '{schema}.out', false, 1)", alone=True)],
    "madlib.madlib_keras_fit_multiple_model": [
        Call("SELECT madlib.madlib_keras_fit_multiple_model('{plain}', '{schema}.out', '{selection}', 1)", slow=True,
             alone=True),
        Call("SELECT madlib.madlib_keras_fit_multiple_model('{plain}', '{madlib}', '{selection}', 1, false, NULL, 1,"
             " true)", slow=True, alone=True),
    ],
    "madlib.madlib_keras_fit": [
        Call("SELECT madlib.madlib_keras_fit('{plain}', '{schema}.out', '{arch}', 1,"
             " $$loss='categorical_crossentropy', optimizer='SGD(lr=0.1)', metrics=['accuracy']$$,"
             " $$batch_size=8, epochs=1$$, 1)", slow=True, alone=True)],
    "madlib.madlib_keras_automl": [
        Call("SELECT madlib.madlib_keras_automl('{plain}', '{schema}.out', '{arch}', '{schema}.chosen', ARRAY[1],"
             " $$ {{'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'], 'optimizer_params_list':"
             " [{{'optimizer': ['SGD']}}]}} $$, $$ {{'batch_size': [8], 'epochs': [1]}} $$, 'hyperopt',"
             " 'num_configs=1, num_iterations=1, algorithm=rand')", slow=True, alone=True)],
    "madlib.load_model_selection_table": [
        Call("SELECT madlib.load_model_selection_table('{arch}', '{schema}.out', ARRAY[1],"
             " ARRAY[$$loss='mse',optimizer='SGD()'$$], ARRAY[$$batch_size=8,epochs=1$$])")],
    "madlib.generate_model_configs": [
        Call("SELECT madlib.generate_model_configs('{arch}', '{schema}.out', ARRAY[1],"
             " $$ {{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer': ['SGD']}}]}} $$,"
             " $$ {{'batch_size': [8], 'epochs': [1]}} $$, 'grid')"),
        Call("SELECT madlib.generate_model_configs('{arch}', '{selection}', ARRAY[1],"
             " $$ {{'loss': ['mse'], 'optimizer_params_list': [{{'optimizer': ['SGD']}}]}} $$,"
             " $$ {{'batch_size': [8], 'epochs': [1]}} $$, 'grid')")],
    "madlib.validation_preprocessor_dl": [
        Call("SELECT madlib.validation_preprocessor_dl('{schema}.vectors', '{schema}.out', 'y', 'x', '{plain}')")],
    "madlib.delete_keras_model": [Call("SELECT madlib.delete_keras_model('{arch}', 1)")],
    "madlib.load_keras_model": [
        Call("SELECT madlib.load_keras_model('{arch}', (SELECT model_arch FROM {own}.kept_arch LIMIT 1))")],
    "madlib.load_custom_function": [
        Call("SELECT madlib.load_custom_function('{arch}', convert_to('x', 'UTF8'), 'f')")],
    "madlib.load_top_k_accuracy_function": [Call("SELECT madlib.load_top_k_accuracy_function('top', 3)")],
    "madlib.delete_custom_function": [Call("SELECT madlib.delete_custom_function('{arch}', 1)")],
}  # fmt: skip

NO_DOCUMENT = "it gets no name of a table with a document in it"
ONLY_ARGUMENTS = "it uses what the caller gives and no table"
WITH = "called together with {}"
EXCUSED = {
    "cerebro.version": ONLY_ARGUMENTS,
    "cerebro.warm_up": ONLY_ARGUMENTS,
    "cerebro.add_architecture": ONLY_ARGUMENTS,
    "cerebro.drop_architecture": ONLY_ARGUMENTS,
    "cerebro.propagate": NO_DOCUMENT,
    "cerebro.make_task": NO_DOCUMENT,
    "cerebro.bouts": NO_DOCUMENT,
    "cerebro.transitions": NO_DOCUMENT,
    "cerebro.roll_back": WITH.format("cerebro.set_alias"),
    "cerebro.unregister": WITH.format("cerebro.set_alias"),
    "cerebro.unshare": WITH.format("cerebro.share"),
    "madlib.training_preprocessor_dl": NO_DOCUMENT,
    "madlib.train_test_split": NO_DOCUMENT,
    **dict.fromkeys(
        ("madlib.agg_array_concat", "madlib.array_scalar_mult", "madlib.array_square", "madlib.array_to_bytea",
         "madlib.assert", "madlib.assert_guc_value", "madlib.convert_array_to_bytea",
         "madlib.convert_bytea_to_real_array", "madlib.convert_bytea_to_smallint_array", "madlib.gpu_configuration",
         "madlib.gpu_info_nvidia", "madlib.gpu_info_tensorflow", "madlib.hyperband_schedule",
         "madlib.is_table_unlogged", "madlib.is_ver_gp_640_700_or_pg_11", "madlib.relative_error",
         "madlib.test_error_msg", "madlib.test_input_table", "madlib.test_output_table",
         "madlib.top_k_categorical_acc_pickled", "madlib.trap_error", "madlib.version"),
        ONLY_ARGUMENTS,
    ),
}  # fmt: skip
