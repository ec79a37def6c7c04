WITH t AS (SELECT segment, step, 'mismatch_prob_diff' AS signal, mismatch_prob_diff AS x
    FROM train
    WHERE fin(mismatch_prob_diff)
    UNION ALL SELECT segment, step, 'mismatch_pearson', mismatch_pearson FROM train WHERE fin(mismatch_pearson)),
n AS (SELECT *, row_number() OVER (PARTITION BY segment, signal ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment, signal) AS n
    FROM t),
b AS (SELECT segment, signal, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(3, n / 10)) AS early,
    median(x) FILTER (WHERE k > n - greatest(3, n / 10)) AS late
    FROM n
    GROUP BY segment, signal),
h AS (SELECT n.*, early, late, CASE WHEN signal = 'mismatch_pearson' THEN x < $pearson ELSE x > $level
    OR (x > $growth * early AND x > $floor AND b.n >= 10) END AS high
    FROM n JOIN b USING (segment, signal)),
m AS (SELECT *, share_left(high, (segment, signal), step) AS share
    FROM h LEFT JOIN (SELECT segment, onset AS opened FROM gap WHERE main) USING (segment))
SELECT min(step) FILTER (WHERE high AND share >= 0.6 AND step >= coalesce(opened, 0)) AS step_start, max(step) AS step_end, any_value(late) AS observed,
    any_value(early) AS expected, segment, signal, CASE WHEN count(*) < 3 THEN 0.7 END AS strength
FROM m GROUP BY segment, signal
HAVING step_start IS NOT NULL AND count(*) FILTER (WHERE high) >= least(3, count(*))
    AND (CASE WHEN signal = 'mismatch_pearson' THEN any_value(late) < $pearson ELSE any_value(late) > $level
        OR any_value(late) > $growth * any_value(early) END)
ORDER BY step_start
