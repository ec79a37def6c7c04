-- What the task gains is an accuracy: of the rows, of the evaluations, or a part of the reward that is named like
-- one.
WITH t AS (SELECT segment, step, response_length AS l, coalesce(score, reward) AS r, row_number() OVER w AS k,
    count(*) OVER (PARTITION BY segment) AS n
    FROM train
    WHERE fin(response_length) AND response_length > 0 AND fin(coalesce(score, reward))
    WINDOW w AS (PARTITION BY segment ORDER BY step)),
b AS (SELECT segment, any_value(n) AS n, min(step) AS step_start, max(step) AS step_end, corr(r, l) AS together,
    median(l) FILTER (WHERE k <= greatest(5, n / 10)) AS early, median(l) FILTER (WHERE k > n - greatest(5,
        n / 10)) AS late,
    median(r) FILTER (WHERE k <= greatest(5, n / 10)) AS from_reward,
    median(r) FILTER (WHERE k > n - greatest(5, n / 10)) AS to_reward, max(r) - min(r) AS span
    FROM t
    GROUP BY segment),
a AS (SELECT segment, step, 'accuracy' AS task, accuracy AS x FROM train WHERE fin(accuracy)
    UNION ALL SELECT segment, step, 'the evaluation', eval_accuracy FROM train WHERE fin(eval_accuracy)
    UNION ALL SELECT segment, step, label, value FROM component
    WHERE fin(value) AND (signal = 'eval_accuracy'
        OR signal = 'reward_component' AND regexp_matches(lower(label),
        'accura|correct|answer|exact|pass|verif|math|code'))),
c AS (SELECT *, row_number() OVER (PARTITION BY segment, task ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment, task) AS n
    FROM a),
g AS (SELECT segment, task, median(x) FILTER (WHERE k <= greatest(1, n / 10)) AS from_task,
    median(x) FILTER (WHERE k > n - greatest(1, n / 10)) AS to_task, max(n) AS n
    FROM c
    GROUP BY segment, task),
w AS (SELECT segment, max(to_task - from_task) AS gained FROM g WHERE n >= 3 GROUP BY segment)
SELECT step_start, step_end, late AS observed, early AS expected, segment, together, from_reward, to_reward, task,
    from_task,
    to_task
FROM b JOIN w USING (segment) JOIN g USING (segment)
WHERE b.n >= 20 AND late > $longer * early AND to_reward - from_reward > $rise * span AND together >= $together
    AND gained <= $gain AND g.n >= 3
ORDER BY step_start, task
LIMIT 1
