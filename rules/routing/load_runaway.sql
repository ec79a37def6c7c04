WITH t AS (SELECT segment, step, layer, module, moe_max_vio AS x, row_number() OVER (PARTITION BY segment, layer, module ORDER BY step) AS k, count(*) OVER (PARTITION BY segment, layer, module) AS n FROM layer WHERE fin(moe_max_vio)),
b AS (SELECT segment, layer, module, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(5, n / 10)) AS early, median(x) FILTER (WHERE k > n - greatest(3, n / 20)) AS late, max(step) AS step_end FROM t GROUP BY segment, layer, module)
SELECT (SELECT min(step) FROM t WHERE t.segment = b.segment AND t.layer IS NOT DISTINCT FROM b.layer AND t.module IS NOT DISTINCT FROM b.module AND x > $growth * early
        AND (SELECT median(u.x) FROM t u WHERE u.segment = t.segment AND u.layer IS NOT DISTINCT FROM t.layer AND u.module IS NOT DISTINCT FROM t.module AND u.k >= t.k) > $growth * early) AS step_start,
    step_end, late AS observed, early AS expected, segment, layer, coalesce('layer ' || layer, module) AS "where"
FROM b WHERE n >= 10 AND late > $level AND late > $growth * early ORDER BY late / early DESC
