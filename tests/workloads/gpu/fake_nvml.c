/* libnvidia-ml.so.1 that answers what a text file says: see fake_gpu.h. Structures are those of nvml.h. */
#include "fake_gpu.h"
#include <signal.h>

typedef int ret;
typedef struct device *handle;
#define EXPORT __attribute__((visibility("default")))
#define DEVICES 16
#define SLICES 7
#define PROCESSES 32
enum { OK, UNINITIALIZED, INVALID, UNSUPPORTED, PERMISSION, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, LOST = 15 };

struct process { unsigned pid; unsigned long long bytes; unsigned util; };
struct device {
    int index, slice; /* slice -1: the whole device */
    unsigned instance;
    struct device *parent;
    char name[64], uuid[64], busy[512];
    double util, on_ms, off_ms;
    unsigned long long used, total, throttle, ecc;
    unsigned power, sm_clock, memory_clock, temperature, tx, rx, xid;
    int lost, slices, processes;
    struct process process[PROCESSES];
};
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
struct sample { unsigned long long at; union { unsigned u; double d; unsigned long long l; } v; };
struct utilisation { unsigned gpu, memory; };
struct process_sample { unsigned pid; unsigned long long at; unsigned sm, memory, enc, dec; };
struct event { handle d; unsigned long long type, data; unsigned gi, ci; };
struct gpm { uint64_t at; handle d; };
struct metric { unsigned id; ret code; double value; char *names[3]; };
struct gpm_support { unsigned version, supported; };
struct gpm_get { unsigned version, n; struct gpm *a, *b; struct metric m[210]; };
static struct {
    int devices, init_error, gpm, events;
    double period_ms;
    char driver[64], hang[64], crash[64], slow[64];
    double slow_ms;
} all;
static struct device devices[DEVICES], slices[DEVICES][SLICES];
static unsigned seen_xid[DEVICES];

static void state_path(char *path, size_t size)
{
    const char *given = getenv("FAKE_NVML");
    Dl_info info;
    if (given)
        snprintf(path, size, "%s", given);
    else if (dladdr((void *)state_path, &info))
        snprintf(path, size, "%.*sfake_nvml.state", (int)(strrchr(info.dli_fname, '/') + 1 - info.dli_fname), info.dli_fname);
}

static void set(struct device *d, char *key, char *rest)
{
    int j, pid, util;
    unsigned instance;
    char uuid[64];
    unsigned long long a;
    if (!strcmp(key, "name")) snprintf(d->name, sizeof d->name, "%s", rest);
    else if (!strcmp(key, "uuid")) snprintf(d->uuid, sizeof d->uuid, "%s", rest);
    else if (!strcmp(key, "util")) d->util = atof(rest);
    else if (!strcmp(key, "busy")) snprintf(d->busy, sizeof d->busy, "%s", rest);
    else if (!strcmp(key, "wave")) sscanf(rest, "%lf %lf", &d->on_ms, &d->off_ms);
    else if (!strcmp(key, "memory")) sscanf(rest, "%llu %llu", &d->used, &d->total);
    else if (!strcmp(key, "power")) d->power = atoi(rest);
    else if (!strcmp(key, "clocks")) sscanf(rest, "%u %u", &d->sm_clock, &d->memory_clock);
    else if (!strcmp(key, "throttle")) d->throttle = strtoull(rest, NULL, 0);
    else if (!strcmp(key, "temperature")) d->temperature = atoi(rest);
    else if (!strcmp(key, "pcie")) sscanf(rest, "%u %u", &d->tx, &d->rx);
    else if (!strcmp(key, "ecc")) d->ecc = strtoull(rest, NULL, 0);
    else if (!strcmp(key, "xid")) d->xid = atoi(rest);
    else if (!strcmp(key, "lost")) d->lost = atoi(rest);
    else if (!strcmp(key, "process") && sscanf(rest, "%d %llu %d", &pid, &a, &util) == 3 && d->processes < PROCESSES)
        d->process[d->processes++] = (struct process){pid, a, util};
    else if (!strcmp(key, "slice") && sscanf(rest, "%d %63s %u", &j, uuid, &instance) == 3 && j < SLICES) {
        struct device *s = &slices[d->index][j];
        *s = *d;
        s->slice = j, s->parent = d, s->instance = instance, s->processes = 0;
        snprintf(s->uuid, sizeof s->uuid, "%s", uuid);
        snprintf(s->name, sizeof s->name, "%.40s MIG 1g.10gb", d->name);
        s->used = d->used / 7, s->total = d->total / 7;
        if (d->slices <= j)
            d->slices = j + 1;
    }
}

static void read_state(void)
{
    char path[4096] = "", line[1024];
    state_path(path, sizeof path);
    FILE *f = fopen(path, "re");
    memset(&all, 0, sizeof all);
    all.devices = 1, all.period_ms = 100, all.events = 1;
    strcpy(all.driver, "550.54.15");
    for (int i = 0; i < DEVICES; i++) {
        struct device *d = &devices[i];
        memset(d, 0, sizeof *d);
        d->index = i, d->slice = -1, d->total = 80ull << 30, d->power = 100, d->sm_clock = 1500, d->memory_clock = 2600, d->temperature = 40;
        snprintf(d->name, sizeof d->name, "Fake GPU");
        snprintf(d->uuid, sizeof d->uuid, "GPU-%08d-0000-0000-0000-000000000000", i);
    }
    while (f && fgets(line, sizeof line, f)) {
        int i, at = 0;
        char key[64] = "";
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "device %d %63s %n", &i, key, &at) == 2 && i >= 0 && i < DEVICES) {
            set(&devices[i], key, line + at);
        } else {
            sscanf(line, "devices %d", &all.devices);
            sscanf(line, "driver %63s", all.driver);
            sscanf(line, "period_ms %lf", &all.period_ms);
            sscanf(line, "init_error %d", &all.init_error);
            sscanf(line, "gpm %d", &all.gpm);
            sscanf(line, "events %d", &all.events);
            sscanf(line, "hang %63s", all.hang);
            sscanf(line, "crash %63s", all.crash);
            sscanf(line, "slow %63s %lf", all.slow, &all.slow_ms);
        }
    }
    if (f)
        fclose(f);
}

static int names(const char *pattern, const char *call) { return !strcmp(pattern, "*") || !strcmp(pattern, call); }

/* The beginning of every call. */
static ret begin(const char *call, handle d)
{
    read_state();
    if (names(all.crash, call))
        abort();
    if (names(all.hang, call))
        for (;;)
            pause();
    if (names(all.slow, call))
        usleep(all.slow_ms * 1000);
    return d && (d->lost || (d->parent && d->parent->lost)) ? LOST : OK;
}
#define BEGIN(d)                        \
    do {                                \
        ret rc = begin(__func__, d);    \
        if (rc)                         \
            return rc;                  \
    } while (0)

/* Share of [from, to) in which something ran, by the file that the job writes. */
static double busy_share(const char *path, uint64_t from, uint64_t to)
{
    static struct gpu_file *file;
    static char opened[512];
    if (strcmp(opened, path)) {
        file = gpu_file(path, 0);
        if (file)
            snprintf(opened, sizeof opened, "%s", path);
    }
    if (!file || to <= from)
        return 0;
    uint64_t n = file->count, end = from, sum = 0, k = n > SPANS ? n - SPANS : 0;
    for (; k < n; k++) { /* begun in order, so an overlap is only with what ended last */
        uint64_t a = file->span[k % SPANS].from_us, b = file->span[k % SPANS].to_us;
        a = a < end ? end : a;
        b = b > to ? to : b;
        if (b > a)
            sum += b - a, end = b;
    }
    return (double)sum / (to - from);
}

static double share(handle d, uint64_t from, uint64_t to)
{
    if (d->busy[0])
        return busy_share(d->busy, from, to);
    if (d->on_ms + d->off_ms > 0) {
        double sum = 0, step = (to - from) / 100.0, turn = (d->on_ms + d->off_ms) * 1000;
        for (int i = 0; i < 100; i++) {
            double at = from + step * i;
            sum += at - turn * (uint64_t)(at / turn) < d->on_ms * 1000;
        }
        return sum / 100;
    }
    return d->util / 100;
}

static int processes(handle d, struct process *out)
{
    int n = d->processes;
    memcpy(out, d->process, sizeof d->process);
    struct gpu_file *file = d->busy[0] ? gpu_file(d->busy, 0) : NULL;
    for (int i = 0; file && i < OWNERS && n < PROCESSES; i++)
        if (file->owner[i].pid && !kill(file->owner[i].pid, 0))
            out[n++] = (struct process){file->owner[i].pid, file->owner[i].bytes, 50};
    if (file)
        munmap(file, sizeof *file);
    return n;
}

static ret text(char *to, unsigned size, const char *from) { return snprintf(to, size, "%s", from) < (int)size ? OK : SMALL; }

EXPORT ret nvmlInit_v2(void) { BEGIN(NULL); return all.init_error; }
EXPORT ret nvmlInitWithFlags(unsigned flags) { BEGIN(NULL); return all.init_error; }
EXPORT ret nvmlShutdown(void) { BEGIN(NULL); return OK; }
EXPORT const char *nvmlErrorString(ret code) { return "an error of the fake"; }
EXPORT ret nvmlSystemGetDriverVersion(char *to, unsigned size) { BEGIN(NULL); return text(to, size, all.driver); }
EXPORT ret nvmlDeviceGetCount_v2(unsigned *n) { BEGIN(NULL); *n = all.devices; return OK; }
EXPORT ret nvmlDeviceGetHandleByIndex_v2(unsigned i, handle *d)
{
    BEGIN(NULL);
    if (i >= (unsigned)all.devices)
        return INVALID;
    *d = &devices[i];
    return (*d)->lost ? LOST : OK;
}
EXPORT ret nvmlDeviceGetName(handle d, char *to, unsigned size) { BEGIN(d); return text(to, size, d->name); }
EXPORT ret nvmlDeviceGetUUID(handle d, char *to, unsigned size) { BEGIN(d); return text(to, size, d->uuid); }
EXPORT ret nvmlDeviceGetIndex(handle d, unsigned *i) { BEGIN(d); *i = d->index; return OK; }
EXPORT ret nvmlDeviceGetMemoryInfo_v2(handle d, struct memory *m)
{
    BEGIN(d);
    unsigned long long used = d->used;
    struct process list[PROCESSES];
    if (d->busy[0])
        for (int n = processes(d, list); n-- > 0;)
            used += list[n].bytes;
    m->total = d->total, m->used = used, m->free = d->total - used, m->reserved = 0;
    return OK;
}
EXPORT ret nvmlDeviceGetSamples(handle d, int type, unsigned long long last, int *value_type, unsigned *count,
                                struct sample *out)
{
    BEGIN(d);
    if (all.period_ms <= 0 || d->slice >= 0 || d->slices || type > 2)
        return UNSUPPORTED;
    uint64_t period = all.period_ms * 1000, now = clock_us(CLOCK_REALTIME), from = now - 2000000;
    if (last > from)
        from = last;
    unsigned n = 0, room = out ? *count : 0;
    for (uint64_t at = (from / period + 1) * period; at <= now; at += period, n++)
        if (n < room) {
            out[n].at = at;
            out[n].v.l = 0;
            out[n].v.u = type == 0 ? d->power * 1000 : (unsigned)(share(d, at - period, at) * (type == 1 ? 100 : 50) + 0.5);
        }
    *value_type = 1;
    *count = out && n > room ? room : n;
    return n ? OK : NOT_FOUND;
}
EXPORT ret nvmlDeviceGetUtilizationRates(handle d, struct utilisation *u)
{
    BEGIN(d);
    if (d->slice >= 0 || d->slices)
        return UNSUPPORTED;
    uint64_t now = clock_us(CLOCK_REALTIME);
    u->gpu = share(d, now - 200000, now) * 100 + 0.5;
    u->memory = u->gpu / 2;
    return OK;
}
EXPORT ret nvmlDeviceGetPowerUsage(handle d, unsigned *mw) { BEGIN(d); *mw = d->power * 1000; return d->slice >= 0 ? UNSUPPORTED : OK; }
EXPORT ret nvmlDeviceGetClockInfo(handle d, int which, unsigned *mhz)
{
    BEGIN(d);
    *mhz = which == 2 ? d->memory_clock : d->sm_clock;
    return OK;
}
EXPORT ret nvmlDeviceGetCurrentClocksThrottleReasons(handle d, unsigned long long *mask) { BEGIN(d); *mask = d->throttle; return OK; }
EXPORT ret nvmlDeviceGetTemperature(handle d, int sensor, unsigned *t) { BEGIN(d); *t = d->temperature; return OK; }
EXPORT ret nvmlDeviceGetPcieThroughput(handle d, int counter, unsigned *kbps)
{
    BEGIN(d);
    usleep(20000);
    *kbps = counter ? d->rx : d->tx;
    return OK;
}
EXPORT ret nvmlDeviceGetTotalEccErrors(handle d, int type, int counter, unsigned long long *n) { BEGIN(d); *n = d->ecc; return OK; }
struct info { unsigned pid; unsigned long long bytes; unsigned instance, compute; };
EXPORT ret nvmlDeviceGetComputeRunningProcesses_v3(handle d, unsigned *count, struct info *out)
{
    BEGIN(d);
    struct process list[PROCESSES];
    unsigned n = processes(d, list), room = *count;
    *count = n;
    if (n > room)
        return SMALL;
    for (unsigned i = 0; i < n; i++)
        out[i] = (struct info){list[i].pid, list[i].bytes, d->slice >= 0 ? d->instance : ~0u, ~0u};
    return OK;
}
EXPORT ret nvmlDeviceGetProcessUtilization(handle d, struct process_sample *out,
                                           unsigned *count, unsigned long long last)
{
    BEGIN(d);
    struct process list[PROCESSES];
    unsigned n = processes(d, list), room = out ? *count : 0;
    *count = n;
    if (!n)
        return NOT_FOUND;
    if (n > room)
        return SMALL;
    for (unsigned i = 0; i < n; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].pid = list[i].pid, out[i].at = clock_us(CLOCK_REALTIME), out[i].sm = list[i].util;
    }
    return OK;
}

/* MIG. */
EXPORT ret nvmlDeviceGetMigMode(handle d, unsigned *now, unsigned *pending)
{
    BEGIN(d);
    *now = *pending = d->slices > 0;
    return OK;
}
EXPORT ret nvmlDeviceGetMaxMigDeviceCount(handle d, unsigned *n) { BEGIN(d); *n = d->slices ? SLICES : 0; return OK; }
EXPORT ret nvmlDeviceGetMigDeviceHandleByIndex(handle d, unsigned i, handle *slice)
{
    BEGIN(d);
    if (i >= SLICES || !slices[d->index][i].parent)
        return NOT_FOUND;
    *slice = &slices[d->index][i];
    return OK;
}
EXPORT ret nvmlDeviceGetGpuInstanceId(handle d, unsigned *id) { BEGIN(d); *id = d->instance; return d->slice >= 0 ? OK : UNSUPPORTED; }

/* Events. */
EXPORT ret nvmlEventSetCreate(void **set) { BEGIN(NULL); *set = &all; return all.events ? OK : UNSUPPORTED; }
EXPORT ret nvmlEventSetFree(void *set) { return OK; }
EXPORT ret nvmlDeviceGetSupportedEventTypes(handle d, unsigned long long *types) { BEGIN(d); *types = all.events ? 8 : 0; return OK; }
EXPORT ret nvmlDeviceRegisterEvents(handle d, unsigned long long types, void *set) { BEGIN(d); return all.events ? OK : UNSUPPORTED; }
EXPORT ret nvmlEventSetWait_v2(void *set, struct event *event, unsigned ms)
{
    BEGIN(NULL);
    for (int i = 0; i < all.devices; i++)
        if (devices[i].xid && devices[i].xid != seen_xid[i]) {
            seen_xid[i] = devices[i].xid;
            memset(event, 0, sizeof *event);
            event->d = &devices[i], event->type = 8, event->data = devices[i].xid;
            return OK;
        }
    usleep(ms * 1000);
    return TIMEOUT;
}

/* GPM: a sample is its time, a metric the share between two. Kernels run for nine tenths of what utilisation says. */
EXPORT ret nvmlGpmQueryDeviceSupport(handle d, struct gpm_support *s) { BEGIN(d); s->supported = all.gpm; return OK; }
EXPORT ret nvmlGpmSampleAlloc(struct gpm **s) { BEGIN(NULL); *s = calloc(1, sizeof **s); return OK; }
EXPORT ret nvmlGpmSampleFree(struct gpm *s) { free(s); return OK; }
EXPORT ret nvmlGpmSampleGet(handle d, struct gpm *s)
{
    BEGIN(d);
    *s = (struct gpm){clock_us(CLOCK_REALTIME), d};
    return all.gpm && !d->slices ? OK : UNSUPPORTED;
}
EXPORT ret nvmlGpmMigSampleGet(handle d, unsigned instance, struct gpm *s)
{
    BEGIN(d);
    *s = (struct gpm){clock_us(CLOCK_REALTIME), d};
    return all.gpm ? OK : UNSUPPORTED;
}
EXPORT ret nvmlGpmMetricsGet(struct gpm_get *g)
{
    BEGIN(NULL);
    if (g->b->at < g->a->at + 100000)
        return INVALID;
    double busy = 100 * share(g->a->d, g->a->at, g->b->at);
    for (unsigned i = 0; i < g->n; i++) {
        g->m[i].code = OK;
        unsigned id = g->m[i].id;
        handle d = g->a->d;
        g->m[i].value = id == 1 ? busy * 0.9 : id == 2 ? busy * 0.8 : id == 3 ? busy * 0.4 : id == 10 ? busy * 0.1
            : id == 20 ? d->tx / 1024.0 : id == 21 ? d->rx / 1024.0 : busy * 0.2;
    }
    return OK;
}
