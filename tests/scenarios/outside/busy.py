"""Uses a CPU."""

while True:
    sum(range(10_000))
