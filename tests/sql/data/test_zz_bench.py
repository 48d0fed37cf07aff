import json, time
from tests.sql.lab import Lab


def test_bench(lab: Lab) -> None:
    lab("""CREATE TABLE base AS SELECT id, decode(string_agg(md5((id*192+k)::text), '' ORDER BY k), 'hex') AS b
           FROM generate_series(1, 10000) id, generate_series(1, 192) k GROUP BY id""")
    lab(
        "CREATE TABLE as_bytes AS SELECT id, b AS image, id % 10 AS y FROM base; ALTER TABLE as_bytes ADD PRIMARY KEY (id)"
    )
    lab("""CREATE TABLE as_array AS SELECT id, (SELECT array_agg(r ORDER BY i) FROM (SELECT i, (SELECT array_agg(c ORDER BY j) FROM
        (SELECT j, (SELECT array_agg(get_byte(b, (i*32+j)*3+k)::smallint ORDER BY k) FROM generate_series(0,2) k) AS c FROM generate_series(0,31) j) x) AS r
        FROM generate_series(0,31) i) z) AS image, id % 10 AS y FROM base; ALTER TABLE as_array ADD PRIMARY KEY (id)""")
    out = {}
    for round in range(3):
        for kind in ("bytes", "array"):
            prepare = json.dumps({"image": {"shape": [32, 32, 3]}} if kind == "bytes" else {})
            begun = time.perf_counter()
            lab(
                "SELECT cerebro.pack(%s, %s, 'y', inputs => 'image', segments => 2, seed => 1, validation => 0.2, prepare => %s)",
                f"as_{kind}",
                f"p_{kind}",
                prepare,
            )
            took = time.perf_counter() - begun
            size = lab.value("SELECT sum(octet_length(image)) FROM p_%s" % kind)
            src = lab.value("SELECT pg_total_relation_size('as_%s')" % kind)
            out.setdefault(kind, []).append((round, took))
            out[kind + " size"] = (size, src)
            if round == 2:
                same = lab("SELECT encode(sha256(image), 'hex') FROM p_%s ORDER BY buffer_id, __dist_key__" % kind)
                out.setdefault("hash", []).append(same)
            lab(f"DROP TABLE p_{kind}, p_{kind}_summary, p_{kind}_validation, p_{kind}_validation_summary")
    out["hash"] = out["hash"][0] == out["hash"][1]
    print(json.dumps(out, default=str, indent=1))
    # prediction
    for kind in ("bytes", "array"):
        prepare = json.dumps({"image": {"shape": [32, 32, 3]}} if kind == "bytes" else {})
        lab(
            'SELECT cerebro.fit(%s, %s, \'[{"architecture": "cnn", "blocks": 1, "filters": 4, "units": 8}]\', target => \'y\', inputs => \'image\', epochs => 1, prepare => %s)',
            f"as_{kind}",
            f"m_{kind}",
            prepare,
        )
    for round in range(3):
        for kind in ("bytes", "array"):
            begun = time.perf_counter()
            lab(f"SELECT count(*) FROM cerebro.predict('m_{kind}', 'SELECT * FROM as_{kind}', 'id')")
            print(kind, "predict 10000", time.perf_counter() - begun)
            begun = time.perf_counter()
            for i in range(20):
                lab(f"SELECT * FROM cerebro.predict('m_{kind}', 'SELECT * FROM as_{kind} WHERE id = 7', 'id')")
            print(kind, "predict one", (time.perf_counter() - begun) / 20)
