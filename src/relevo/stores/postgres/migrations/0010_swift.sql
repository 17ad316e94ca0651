-- Plans made once. The verbs' plans do not depend on the values they get, and planning a claim of
-- one job anew took longer than the claim.
alter function relevo.insert_jobs set plan_cache_mode = force_generic_plan;
alter function relevo.claim_jobs set plan_cache_mode = force_generic_plan;
alter function relevo.settle_jobs set plan_cache_mode = force_generic_plan;
alter function relevo.extend_leases set plan_cache_mode = force_generic_plan;
alter function relevo.rescue_jobs set plan_cache_mode = force_generic_plan;
alter function relevo.receive set plan_cache_mode = force_generic_plan;

-- A column in which every value is the same travels as one value.
create function relevo.spread(_values anyarray, _size integer) returns anyarray
language sql immutable
as $$
select case
    when cardinality(_values) = 1 then array_fill(_values[1], array[_size])
    else _values
end
$$;
