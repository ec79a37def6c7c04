"""How each layer's gradient norm moved at each step against its own rows before: the table `swing`, measured once for every rule.

A row a segment, step, and layer: medians of eight rows after against eight before, of the layer's log norm itself (`own`) and against
the median layer of its step, which cancels what all layers share (batch, reward noise, loss scale, a factor on all). A row without a
layer holds the slope over depth, as the log ratio of the first to the last layer. What a number means is for a rule to say. Empty
without gradient norms by layer. docs/rules.md has the columns.
"""

from __future__ import annotations

#: Columns of `layer` that the table is made from, whatever the rules declare.
LAYER = ("grad_norm", "act_norm")
#: Rows of a signal before a step can have five on either side.
LEAST = 10

TABLE_SQL = (
    "CREATE TABLE swing (segment INTEGER, step BIGINT, layer INTEGER, layers BIGINT, last BIGINT, rows_before BIGINT, rows_after BIGINT, "
    "own DOUBLE, own_gap DOUBLE, own_jump DOUBLE, shift DOUBLE, gap DOUBLE, jump DOUBLE, moved DOUBLE)"
)


def _shift(x: str) -> str:
    return f"median({x}) OVER a - median({x}) OVER b"


def _gap(x: str) -> str:
    """What parts the rows before from those after, one outlier left out each; negative where they overlap."""
    return (
        f"CASE WHEN median({x}) OVER a > median({x}) OVER b THEN quantile_cont({x}, 0.15) OVER a - quantile_cont({x}, 0.85) OVER b "
        f"ELSE quantile_cont({x}, 0.15) OVER b - quantile_cont({x}, 0.85) OVER a END"
    )


#: `layers` is null, and so is what is held against the median layer, where a step lacks layers that others have; `jump` is what the
#: first row alone did; `moved` how far the log activation norm went.
SWING_SQL = f"""
INSERT INTO swing
WITH g AS (SELECT segment, step, layer, ln(grad_norm) AS own, ln(act_norm) AS act FROM layer
    WHERE layer IS NOT NULL AND fin(grad_norm) AND grad_norm > 0 AND coalesce(act_norm > 0, true)),
whole AS (SELECT segment, step, median(own) AS middle, count(*) AS layers, -regr_slope(own, layer) * (max(layer) - min(layer)) AS tilt
    FROM g GROUP BY segment, step),
ends AS (SELECT segment, max(layers) AS layers, max(step) AS last FROM whole GROUP BY segment),
k AS (SELECT w.segment, step, middle, tilt, last, CASE WHEN w.layers = e.layers AND e.layers >= 3 THEN e.layers END AS layers
    FROM whole w JOIN ends e USING (segment)),
x AS (SELECT g.*, CASE WHEN layers IS NOT NULL THEN own - middle END AS x, layers, last FROM g JOIN k USING (segment, step)
    UNION ALL SELECT segment, step, NULL, NULL, NULL, tilt, layers, last FROM k WHERE layers IS NOT NULL)
SELECT segment, step, layer, layers, last, count(*) OVER b, count(*) OVER a,
    {_shift("own")}, {_gap("own")}, own - median(own) OVER near, {_shift("x")}, {_gap("x")}, x - median(x) OVER near,
    abs(act - median(act) OVER near)
FROM x WINDOW b AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING),
    a AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN CURRENT ROW AND 7 FOLLOWING),
    near AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING)
"""
