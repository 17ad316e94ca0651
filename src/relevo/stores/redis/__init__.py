"""Jobs on Redis or Valkey, 6.2 or newer: one server, one named by sentinels, or a cluster.

    redis://user:password@host:6379/0                    rediss://… the same with TLS
    redis+sentinel://user:password@host1,host2/mymaster
    redis+cluster://user:password@host1:6379,host2:6379  rediss+cluster://…

Options follow a '?': `prefix=relevo` in front of every key and of the channel; `wait=1`, so many
replicas have an insert before it is answered; `allow_volatile=1`, a server that forgets is fine;
`allow_open=1`, a server elsewhere needs no password; `ca=/path`, whom to trust;
`sentinel_username=…` and `sentinel_password=…`.

The server must have `appendonly yes` and `maxmemory-policy noeviction`. A user of its own needs no
more than

    ACL SETUSER relevo on >password resetkeys ~relevo:* resetchannels &relevo:* -@all
        +eval +evalsha +time +publish +subscribe +info +wait +role +cluster|slots +asking
        +get +set +del +exists +hget +hset +hdel +hmget +hkeys +hvals +hgetall +hexists +hincrby
        +sadd +srem +scard +smembers +sismember +smismember +xadd +xrevrange
        +rpush +lpush +lpop +lset +lindex +llen +lrange +ltrim
        +zadd +zrem +zcard +zcount +zscore +zmscore +zincrby +zrange +zrevrange +zrangebyscore
        +zrevrangebyscore +zrangebylex +zremrangebyrank +zremrangebyscore

`scripts/moves.lua` lists the keys.
"""
