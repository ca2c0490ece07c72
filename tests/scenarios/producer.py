"""One process takes a stream apart and feeds all workers; they have little to do, and the trainer waits."""

import multiprocessing
import os

from kit import log, work
from kit.job import here


def produce(job, taken):
    unpack = work.Inflate(job.produce_ms)
    while True:
        if job.fault:
            with log.span("produce"):
                unpack()
        taken.put(1)


def finish(job, taken, made):
    unpack, decode = work.Inflate(job.produce_ms), work.Inflate(job.decode_ms)
    while True:
        taken.get()
        if not job.fault:
            unpack()
        with log.span("decode"):
            decode()
        made.put(os.getpid())


def main():
    job = here()
    context = multiprocessing.get_context(job.start)
    taken, made = context.Queue(4), context.Queue(4)
    context.Process(target=produce, args=(job, taken), daemon=True).start()
    for _ in range(job.workers):
        context.Process(target=finish, args=(job, taken, made), daemon=True).start()
    compute = work.Torch(job.compute_ms)
    end = log.now()
    while True:
        maker = made.get()
        got, used = log.now(), log.used()
        compute()
        done = log.now()
        log.put("wait", end, got, tag=maker)
        log.put("compute", got, done, log.used() - used)
        log.put("turn", end, done)
        job.turn_done()
        end = done


def cost(spans):
    """The trainer waits while the one producer works: it is the only one that can."""
    return spans.waits_while(spans.of("produce"))


if __name__ == "__main__":
    main()
