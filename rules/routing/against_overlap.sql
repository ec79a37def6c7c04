WITH layers AS (
    SELECT layer, module, segment, step, x, ending, good_ending, direction FROM against
    WHERE name = 'topk_overlap' AND rank IS NULL AND ending IS NOT NULL AND good_ending IS NOT NULL
)
SELECT min(step) FILTER (WHERE direction = -1) AS step_start, NULL::BIGINT AS step_end, avg(ending) AS observed, avg(good_ending) AS expected,
    arg_min(segment, x) FILTER (WHERE direction = -1) AS segment, 'topk_overlap' AS signal,
    count(*) FILTER (WHERE direction = -1) AS apart, count(*) AS layers
FROM layers
HAVING avg(good_ending) - avg(ending) >= $drop AND step_start IS NOT NULL
