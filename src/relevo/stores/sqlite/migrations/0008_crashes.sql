-- What is known of a job whose worker process died: see relevo.job.Suspicion. They mean nothing once
-- the job has ended.
alter table relevo_jobs add column suspicion integer not null default 0;
alter table relevo_jobs add column crashes integer not null default 0;
