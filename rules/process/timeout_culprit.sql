-- By progress where ranks say what they completed; else the rank that is silent among many that wait; else the one
-- that
-- waits at the lowest sequence number.
WITH p AS (SELECT segment, rank, min(value) AS done, min(step) AS step, min(line) AS line, min(source) AS source
    FROM events
    WHERE kind = 'collective_progress' AND rank IS NOT NULL AND value IS NOT NULL
    GROUP BY segment, rank),
t AS (SELECT segment, rank, min(value) AS number, min(step) AS step, min(line) AS line, min(source) AS source
    FROM events
    WHERE kind = 'collective_timeout' AND rank IS NOT NULL
    GROUP BY segment, rank),
slow AS (SELECT segment, rank, step, source, line, 'completed the fewest collectives' AS how, done AS observed,
    max(done) OVER (PARTITION BY segment) AS expected, count(*) OVER (PARTITION BY segment) AS ranks,
    count(*) OVER (PARTITION BY segment, done) AS alike, row_number() OVER (PARTITION BY segment ORDER BY done) AS k
    FROM p),
w AS (SELECT segment, max(rank) + 1 AS world, count(*) AS waiting, min(step) AS step, min(line) AS line,
    min(source) AS source
    FROM t
    GROUP BY segment),
silent AS (SELECT w.segment, r.rank::INTEGER AS rank, w.step, w.source, w.line,
    'is the one that does not time out' AS how,
    w.waiting, w.world, count(*) OVER (PARTITION BY w.segment) AS missing,
    row_number() OVER (PARTITION BY w.segment ORDER BY r.rank) AS k
    FROM w, LATERAL (SELECT unnest(range(w.world)) AS rank) r
    WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.segment = w.segment AND t.rank = r.rank)),
early AS (SELECT segment, rank, step, source, line, 'waits at the lowest sequence number' AS how, number AS observed,
    max(number) OVER (PARTITION BY segment) AS expected, count(*) OVER (PARTITION BY segment) AS ranks,
    count(*) OVER (PARTITION BY segment, number) AS alike,
        row_number() OVER (PARTITION BY segment ORDER BY number) AS k
    FROM t
    WHERE number IS NOT NULL),
found AS (SELECT 1 AS preference, segment, rank, step, source, line, how, observed, expected, ranks - 1 AS waiting
    FROM slow
    WHERE k = 1 AND alike = 1 AND ranks > $least AND observed < expected
    UNION ALL SELECT 2, segment, rank, step, source, line, how, NULL, NULL, waiting
    FROM silent
    WHERE k = 1 AND missing <= $missing * world AND waiting >= $least
    UNION ALL SELECT 3, segment, rank, step, source, line, how, observed, expected, ranks - 1
    FROM early
    WHERE k = 1 AND alike = 1 AND ranks > $least AND observed < expected)
SELECT step AS step_start, step AS step_end, observed, expected, segment, rank, source, line, how, waiting
FROM found ORDER BY preference, segment LIMIT 1
