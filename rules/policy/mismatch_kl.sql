WITH t AS (SELECT segment, step, 'mismatch_kl' AS signal, abs(mismatch_kl) AS x, $kl AS level, $floor AS low
    FROM train
    WHERE fin(mismatch_kl)
    UNION ALL SELECT segment, step, 'mismatch_k3', abs(mismatch_k3), $kl, $floor FROM train WHERE fin(mismatch_k3)
    UNION ALL SELECT segment, step, 'mismatch_logp_abs', abs(mismatch_logp_abs), $logp, 3 * $floor
        FROM train
        WHERE fin(mismatch_logp_abs)
    UNION ALL SELECT segment, step, 'mismatch_mult_prob_error', mismatch_mult_prob_error - 1, $error - 1, 3 * $floor
        FROM train
        WHERE fin(mismatch_mult_prob_error)),
n AS (SELECT *, row_number() OVER (PARTITION BY segment, signal ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment, signal) AS n
    FROM t),
b AS (SELECT segment, signal, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(3, n / 10)) AS early,
    median(x) FILTER (WHERE k > n - greatest(3, n / 10)) AS late
    FROM n
    GROUP BY segment, signal),
h AS (SELECT n.*, early, late, x > level OR (n.n >= 10 AND x > $growth * early AND x > low) AS high
    FROM n JOIN b USING (segment, signal)),
m AS (SELECT *, share_left(high, (segment, signal), step) AS share
    FROM h LEFT JOIN (SELECT segment, onset AS opened FROM gap WHERE main) USING (segment))
SELECT min(step) FILTER (WHERE high AND share >= 0.6 AND step >= coalesce(opened, 0)) AS step_start, max(step) AS step_end, any_value(late) AS observed,
    any_value(early) AS expected, segment, signal
FROM m GROUP BY segment, signal
HAVING step_start IS NOT NULL AND count(*) FILTER (WHERE high) >= 3
    AND (any_value(late) > any_value(level) OR any_value(late) > $growth * any_value(early))
ORDER BY step_start
