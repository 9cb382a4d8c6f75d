-- A page of a listing ends with the row that reaches its limit of bytes. One more row, if there is one, shows that the
-- listing continues.

-- wrapper: page
SELECT {shown}
FROM (
    SELECT
        *,
        sum({bytes}) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING) AS bytes_before
    FROM (
        {statement}
    ) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < {most}::bigint
ORDER BY {order}
