-- Evaluations stand in `train` or, with the name of their data set, in `component`; each series is judged alone.
WITH v AS (SELECT segment, step, 'accuracy' AS label, eval_accuracy AS x FROM train WHERE fin(eval_accuracy)
    UNION ALL SELECT segment, step, 'reward', eval_reward FROM train WHERE fin(eval_reward)
    UNION ALL SELECT segment, step, label, value FROM component WHERE signal = 'eval_accuracy' AND fin(value)),
e AS (SELECT *, row_number() OVER w AS k, count(*) OVER (PARTITION BY segment, label) AS n
    FROM v
    WINDOW w AS (PARTITION BY segment, label ORDER BY step)),
b AS (SELECT segment, label, any_value(n) AS n, max(x) FILTER (WHERE k <= n - 2) AS best, max(x)
    FILTER (WHERE k > n - 2) AS late,
    arg_max(step, x) FILTER (WHERE k <= n - 2) AS best_step, max(step) AS step_end
    FROM e
    GROUP BY segment, label
    HAVING any_value(n) >= $least AND best > 0 AND late < (1 - $fall) * best),
t AS (SELECT segment, step, coalesce(score, reward) AS r, row_number() OVER w AS k,
    count(*) OVER (PARTITION BY segment) AS n,
    abs(coalesce(score, reward) - lag(coalesce(score, reward)) OVER w) AS d
    FROM train
    WHERE fin(coalesce(score, reward)) AND segment IN (SELECT segment FROM b)
    WINDOW w AS (PARTITION BY segment ORDER BY step)),
r AS (SELECT t.segment, label, median(r) FILTER (WHERE step <= best_step AND step > best_step - 10) AS from_reward,
    median(r) FILTER (WHERE k > t.n - 10 AND step > best_step) AS to_reward, max(r) - min(r) AS span,
    1.4826 / sqrt(2) * median(d) AS sigma
    FROM t JOIN b USING (segment)
    GROUP BY t.segment, label)
SELECT best_step AS step_start, step_end, late AS observed, best AS expected, segment, from_reward, to_reward
FROM b JOIN r USING (segment, label)
WHERE to_reward - from_reward > $rise * span
    AND to_reward - from_reward > $noise * sigma
ORDER BY step_start, label
LIMIT 1
