/* Stands for a framework that computes what it compiled as a whole. NAME is the function of the framework's that does, local to the library
 * if LOCAL is set; WHAT is which of its arguments says what is computed, or less than 0. The program gets its address from entry().
 */
#define TEXT(name) #name
#define NAMED(name) __asm__(TEXT(name))
#define ELSEWHERE(name) __asm__(TEXT(name) ".cold")

#ifdef LOCAL
static
#endif
void execute(void *first, void *second, void (*compute)(int), int part) NAMED(NAME);
static void unlikely(volatile char *room) ELSEWHERE(NAME);

/* What a compiler puts elsewhere has the same name, with more behind it: it is called as often again, and is no beginning. */
static __attribute__((noinline, used)) void unlikely(volatile char *room)
{
    room[1] = 2;
}

#ifdef LOCAL
static
#endif
__attribute__((noinline, used)) void execute(void *first, void *second, void (*compute)(int), int part)
{
    volatile char room[64] = { 0 };
    unlikely(room);
    compute(part);
    unlikely(room);
}

typedef void (*entry_t)(void *first, void *second, void (*compute)(int), int part);

entry_t entry(void)
{
    return execute;
}

int argument(void)
{
    return WHAT;
}
