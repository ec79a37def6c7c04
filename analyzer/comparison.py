"""What rollout and trainer say of each other, measured once for every rule: the tables `gap`, `trunk`, `origin`.

`gap` has a row a segment and signal of the gap between the engines: when it opened, by how much, and of what shape it is.
`trunk` has a row a segment and layer: how much further the engines are apart in that layer than before the gap opened, or
than they should be (overlap and ratio 1) where it was open from the first step. `origin` sums that up: where it starts and
how it goes on. They measure; what a number means is for a rule to say. They are empty without a logged gap, so a log
without one pays nothing. docs/rules.md has the columns.
"""

from __future__ import annotations

#: Columns of `train` and `layer` that the tables are made from, whatever the rules declare.
TRAIN = (
    "mismatch_logp_abs", "mismatch_prob_diff", "mismatch_mult_prob_error", "mismatch_k3", "mismatch_kl",
    "mismatch_prob_diff_std", "mismatch_pearson",
)  # fmt: skip
LAYER = ("topk_overlap", "act_norm_ratio")
#: Signals of the gap, the steadiest first: healthy seeds of one run differ by 1.4 in the first, by 2.4 in the second.
_GAPS = {
    "mismatch_logp_abs": "mismatch_logp_abs",
    "mismatch_prob_diff": "mismatch_prob_diff",
    "mismatch_mult_prob_error": "mismatch_mult_prob_error - 1",
    "mismatch_k3": "mismatch_k3",
    "mismatch_kl": "mismatch_kl",
}
#: A row is hot half-way (by ratio) from the early to the late level, but never below 1.7 times the early level, which
#: healthy rows reach, and always above 4 times it, which they do not hold.
_HOT, _SURE = 1.7, 4.0
#: Rows that must be read of a signal before its own level is known.
LEAST = 8

_GAP = (
    "segment INTEGER, signal VARCHAR, main BOOLEAN, rows BIGINT, early DOUBLE, late DOUBLE, onset BIGINT, began BIGINT, last BIGINT, "
    "rows_before BIGINT, rows_after BIGINT, before DOUBLE, after DOUBLE, peak DOUBLE, above DOUBLE, bursts DOUBLE, idle DOUBLE, "
    "growth DOUBLE, tail DOUBLE, pearson DOUBLE, lopsided DOUBLE, one_sided DOUBLE"
)
_TRUNK = (
    "segment INTEGER, layer INTEGER, began BIGINT, last BIGINT, topk_overlap DOUBLE, act_norm_ratio DOUBLE, apart DOUBLE, "
    "apart_before DOUBLE, apart_below DOUBLE, stray DOUBLE, stray_below DOUBLE, loss_below DOUBLE, routers_below BIGINT, "
    "first_layer INTEGER, first_router INTEGER"
)
_ORIGIN = (
    "segment INTEGER, began BIGINT, last BIGINT, layers BIGINT, first_layer INTEGER, routers BIGINT, first_router INTEGER, "
    "starts_at INTEGER, start DOUBLE, least_shift DOUBLE, most_shift DOUBLE, same_sign BOOLEAN, first_shift DOUBLE, "
    "last_shift DOUBLE, loss DOUBLE, loss_first DOUBLE, loss_second DOUBLE, loss_later DOUBLE, stray_first DOUBLE, "
    "stray_input DOUBLE, router_excess DOUBLE, turn DOUBLE, "
    "first_stray DOUBLE, most_stray DOUBLE"
)
TABLES_SQL = f"CREATE TABLE gap ({_GAP}); CREATE TABLE trunk ({_TRUNK}); CREATE TABLE origin ({_ORIGIN})"
#: A layer is where the difference starts when it is this many times as far apart as any layer below it: rounding grows
#: by less than 3 from a layer to the next. Beyond the second it starts there even if the layers below are not clean.
_STEP, _LEAP = 4.0, 20.0
#: Differences of a norm below this are the last digit of a logged ratio; a share of experts below the second is noise.
_CLEAN, _AGREE = 1e-3, 0.006
#: A router that loses this much of its choice beside others that agree has another input.
_FLIPS = 0.015
#: Loss of overlap that a difference of 1 in the norm explains, in the layer of the router itself (which its experts change
#: too) and in the layer below it: rounded weights and activations stay at 0.3 to 0.7 of it, noise on a router is above 1.6.
_OWN, _INPUT = 10.0, 40.0

#: Rows of a run that are enough to see a gap: of a longer one evenly spread rows are read.
_ROWS = 20_000
_SERIES = " UNION ALL ".join(
    f"SELECT segment, step, '{signal}' AS signal, {place} AS place, abs({value}) AS x FROM train "
    f"WHERE fin({value}) AND row % greatest(1, rows // {_ROWS}) = 0"
    for place, (signal, value) in enumerate(_GAPS.items())
)
#: The rows of each signal of the gap, with its early level, whether the row is hot, and the onset: the row that has the
#: fewest hot rows before it and cold rows from it on, so that a healthy spike before the fault is not taken for its start.
#: A cold row counts half, because a fault may come and go, a healthy level does not.
HOT_SQL = f"""
CREATE TABLE hot AS
WITH t AS ({_SERIES}),
n AS (SELECT *, row_number() OVER (PARTITION BY segment, signal ORDER BY step) AS k,
    count(*) OVER (PARTITION BY segment, signal) AS n
    FROM t),
e AS (SELECT segment, signal, median(x) FILTER (WHERE k <= least(greatest(5, n // 6), 50)) AS early,
        median(x) FILTER (WHERE k > n - greatest(5, n // 4)) AS late
    FROM n WHERE n >= {LEAST} GROUP BY segment, signal),
h AS (SELECT n.*, early, late, x > greatest({_HOT} * early, least(sqrt(early) * sqrt(late), {_SURE} * early)) AS hot
    FROM n JOIN e USING (segment, signal)),
s AS (SELECT *, share_left(hot, (segment, signal), step) AS left_hot,
        coalesce(sum(hot::INT) OVER (
            PARTITION BY segment, signal ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
        + 0.5 * sum((NOT hot)::INT) OVER (
            PARTITION BY segment, signal ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS odd
    FROM h),
o AS (SELECT segment, signal, arg_min(k, (odd, k)) FILTER (WHERE hot AND k > 3 AND left_hot >= 0.4) AS onset_k
    FROM s GROUP BY segment, signal)
SELECT s.*, onset_k, place = min(place) OVER (PARTITION BY segment) AS main,
    sum((hot AND k >= onset_k)::INT) OVER (PARTITION BY segment, signal ORDER BY step) AS nth_hot
FROM s JOIN o USING (segment, signal)
"""
GAP_SQL = """
INSERT INTO gap
WITH b AS (SELECT segment, signal, any_value(place) AS place, any_value(main) AS main, any_value(n) AS n,
        any_value(early) AS early, any_value(late) AS late, min(step) FILTER (WHERE k = onset_k) AS onset,
        coalesce(min(step) FILTER (WHERE k = onset_k), min(step)) AS began, max(step) AS last,
        coalesce(any_value(onset_k) - 1, 0) AS rows_before, any_value(n) - any_value(onset_k) + 1 AS rows_after,
        median(x) FILTER (WHERE k < onset_k) AS before, median(x) FILTER (WHERE k >= onset_k) AS after, quantile_cont(x, 0.9) FILTER (WHERE k >= onset_k) AS peak,
        quantile_cont(x, 0.9) FILTER (WHERE k < onset_k) AS high,
        median(x) FILTER (WHERE hot AND k >= onset_k AND nth_hot <= 5) AS opening,
        median(x) FILTER (WHERE k > n - 5) AS ending
    FROM hot GROUP BY segment, signal),
a AS (SELECT segment, signal, avg((x > high)::INT) AS above, avg((x > 15 * b.early)::INT) AS bursts,
        avg((x < 1.5 * b.early)::INT) AS idle
    FROM hot JOIN b USING (segment, signal) WHERE k >= onset_k GROUP BY segment, signal),
shape AS (SELECT h.segment, h.signal, median(mismatch_prob_diff_std / nullif(mismatch_prob_diff, 0)) AS tail,
        median(mismatch_pearson) AS pearson, median(abs(mismatch_kl)) / nullif(median(mismatch_k3), 0) AS lopsided,
        median(mismatch_kl) / nullif(median(mismatch_logp_abs), 0) AS one_sided
    FROM hot h JOIN train t USING (segment, step) WHERE onset_k IS NULL OR (k >= onset_k AND hot)
    GROUP BY h.segment, h.signal)
SELECT segment, signal, main, n, early, late, onset, began, last, rows_before, rows_after, before, after, peak, above, bursts, idle,
    ending / nullif(opening, 0), tail, pearson, lopsided, one_sided
FROM b LEFT JOIN a USING (segment, signal) LEFT JOIN shape USING (segment, signal)
ORDER BY segment, place
"""
#: Layers are read over the hot rows of the second half after the onset: a gap that grows is seen at its size, one that
#: comes and goes while it is there. Where it was open from the start, the second half is held against 1.
TRUNK_SQL = """
INSERT INTO trunk
WITH x AS (SELECT l.segment, l.layer, topk_overlap AS o, act_norm_ratio AS r,
        onset_k IS NOT NULL AND k < onset_k AS was,
        CASE WHEN onset_k IS NULL THEN k > n / 2 ELSE hot AND k >= onset_k + (n - onset_k) / 2 END AS now
    FROM layer l JOIN hot USING (segment, step) WHERE main AND l.layer IS NOT NULL),
m AS (SELECT segment, layer, coalesce(avg(o) FILTER (WHERE was), 1) AS o_was, avg(o) FILTER (WHERE now) AS o_now,
        coalesce(median(r) FILTER (WHERE was), 1) AS r_was, median(r) FILTER (WHERE now) AS r_now
    FROM x GROUP BY segment, layer),
d AS (SELECT segment, layer, o_was - o_now AS loss, any_value(r_now - r_was) AS shift,
        avg(abs(r - r_was)) FILTER (WHERE now) AS apart, coalesce(avg(abs(r - r_was)) FILTER (WHERE was), 0) AS apart_before
    FROM x JOIN m USING (segment, layer) GROUP BY segment, layer, loss),
f AS (SELECT segment, min(layer) FILTER (WHERE shift IS NOT NULL) AS first_layer,
        min(layer) FILTER (WHERE loss IS NOT NULL) AS first_router
    FROM d GROUP BY segment),
w AS (SELECT segment, min(began) AS began, min(last) AS last FROM gap WHERE main GROUP BY segment)
SELECT segment, layer, began, last, -loss, shift, apart, apart_before, max(apart) OVER below,
    apart - apart_before, max(apart - apart_before) OVER below, max(loss) OVER below, count(loss) OVER below,
    first_layer, first_router
FROM d JOIN f USING (segment) JOIN w USING (segment)
WINDOW below AS (PARTITION BY segment ORDER BY layer ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
ORDER BY segment, layer
"""
#: Where in the model the difference starts and how it goes on from there, a row a segment.
ORIGIN_SQL = f"""
INSERT INTO origin
WITH s AS (SELECT segment, min(layer) AS starts_at FROM trunk
    WHERE apart_below IS NOT NULL AND stray >= {_CLEAN} AND layer IS DISTINCT FROM first_router
        AND (apart >= {_LEAP} * apart_below OR (apart >= {_STEP} * apart_below AND stray_below < {_CLEAN}))
        AND coalesce(loss_below, 0) < {_AGREE} AND (-topk_overlap < {_AGREE} OR topk_overlap IS NULL OR stray >= 5 * {_CLEAN})
    GROUP BY segment),
r AS (SELECT segment, layer, -topk_overlap AS loss, stray, stray_below, loss_below,
        row_number() OVER (PARTITION BY segment ORDER BY layer) AS place
    FROM trunk WHERE topk_overlap IS NOT NULL),
-- Two routers that agree and a third that does not: the layers between them are where it starts, however little norms show.
turned AS (SELECT segment, min(layer) AS layer FROM r
    WHERE place > 2 AND loss_below < {_AGREE} AND loss >= {_FLIPS} AND coalesce(stray_below, 0) < 2 * {_CLEAN} GROUP BY segment),
q AS (SELECT segment, avg(loss) AS loss, max(loss) FILTER (WHERE place = 1) AS loss_first,
        max(loss) FILTER (WHERE place = 2) AS loss_second, min(loss) FILTER (WHERE place > 2) AS loss_later,
        max(stray) FILTER (WHERE place = 1) AS stray_first, max(stray_below) FILTER (WHERE place = 1) AS stray_input,
        count(*) AS routers
    FROM r GROUP BY segment),
t AS (SELECT segment, min(began) AS began, min(last) AS last, count(act_norm_ratio) AS layers,
        min(first_layer) AS first_layer, min(first_router) AS first_router, min(abs(act_norm_ratio)) AS least_shift,
        max(abs(act_norm_ratio)) AS most_shift, min(act_norm_ratio) * max(act_norm_ratio) > 0 AS same_sign,
        arg_min(act_norm_ratio, layer) AS first_shift, arg_max(act_norm_ratio, layer) AS last_shift, arg_min(stray, layer) AS first_stray, max(stray) AS most_stray
    FROM trunk GROUP BY segment),
p AS (SELECT segment, CASE WHEN signal IN ('mismatch_k3', 'mismatch_kl') THEN sqrt(2 * late) ELSE late END AS reach
    FROM gap WHERE main)
SELECT segment, began, last, layers, first_layer, coalesce(routers, 0), first_router, coalesce(starts_at, turned.layer) AS starts,
    (SELECT apart FROM trunk u WHERE u.segment = t.segment AND u.layer = coalesce(starts_at, turned.layer)), least_shift, most_shift, same_sign,
    first_shift, last_shift, loss, loss_first, loss_second, loss_later, stray_first, stray_input,
    loss_first / CASE WHEN stray_input IS NULL AND stray_first IS NULL THEN NULL WHEN stray_input IS NULL THEN {_OWN} * greatest(stray_first, 5e-4)
        ELSE {_INPUT} * greatest(stray_input, 2e-4) END,
    reach / greatest(most_stray, {_CLEAN}), first_stray, most_stray
FROM t LEFT JOIN s USING (segment) LEFT JOIN q USING (segment) LEFT JOIN p USING (segment) LEFT JOIN turned USING (segment)
"""
