/* Sleeping and waking: the signal-suppression protocol over notify_seq and waiters_pending.
 *
 * Writer W1 commit (Release), W2 notify_seq += 1 (seq_cst), fence, W3 load waiters, W4 wake.
 * Reader R1 waiters += 1 (seq_cst), fence, R2 sample notify_seq, R3 look again, R4 sleep, R5. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring_core.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

#define NS_PER_S 1000000000ll
#define FALLBACK_SLEEP_NS 100000ll
#define SPINS_PER_CLOCK_READ 64

/* Our own names: kernel headers older than futex_waitv lack them. */
#define WAITV_SIZE_U32 2u
struct waitv_entry {
    uint64_t value, address;
    uint32_t flags, reserved;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void full_fence_after_rmw(void)
{
#if defined(__x86_64__)
    /* A locked instruction is a full fence already; only the compiler must be held. */
    atomic_signal_fence(memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

void ring_notify(ring_control *control)
{
    atomic_fetch_add_explicit(&control->notify_seq, 1, memory_order_seq_cst);
    full_fence_after_rmw();
    if (atomic_load_explicit(&control->waiters_pending, memory_order_relaxed) > 0)
        syscall(SYS_futex, &control->notify_seq, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Wake every sleeper whatever the count says. */
void ring_wake_all(ring_control *control)
{
    atomic_fetch_add_explicit(&control->notify_seq, 1, memory_order_seq_cst);
    syscall(SYS_futex, &control->notify_seq, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Something to consume, or a sealed segment to leave. SEALED alone is not enough: before the
 * new head is published there is nowhere to go. */
static inline int ready(ring_reader *r)
{
    if (r->offset + RING_HEADER_SIZE <= r->segment_size) {
        const _Atomic uint32_t *commit = (const void *)(r->segment + r->offset);
        if (atomic_load_explicit((_Atomic uint32_t *)(uintptr_t)commit, memory_order_acquire))
            return 1;
    }
    ring_segment *header = (ring_segment *)(void *)(uintptr_t)r->segment;
    return (atomic_load_explicit(&header->flags, memory_order_acquire) & RING_FLAG_SEALED) &&
           atomic_load_explicit(&r->control->current_segment, memory_order_acquire) > r->segment_id;
}

static int any_ready(ring_reader **readers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (ready(readers[i]))
            return 1;
    return 0;
}

static int spin(ring_reader **readers, size_t count, int64_t until_ns)
{
    do {
        for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
            if (any_ready(readers, count))
                return 1;
            relax();
        }
    } while (ring_monotonic_ns() < until_ns);
    return 0;
}

static struct timespec timespec_of(int64_t ns)
{
    if (ns < 0)
        ns = 0;
    return (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
}

/* R1 and its fence. Returns the writer's epoch under which the reader is counted. */
static uint64_t enter_waiting(ring_reader *r)
{
    uint64_t epoch = atomic_load_explicit(&r->control->writer_epoch, memory_order_acquire);
    atomic_fetch_add_explicit(&r->control->waiters_pending, 1, memory_order_seq_cst);
    full_fence_after_rmw();
    return epoch;
}

/* R5. A writer that opened meanwhile has reset the count: then there is nothing to take back, or
 * the registration of another reader would be. Never below zero, whatever happens. */
static void leave_waiting(ring_reader *r, uint64_t epoch)
{
    if (atomic_load_explicit(&r->control->writer_epoch, memory_order_acquire) != epoch)
        return;
    uint32_t count = atomic_load_explicit(&r->control->waiters_pending, memory_order_relaxed);
    while (count > 0 &&
           !atomic_compare_exchange_weak_explicit(&r->control->waiters_pending, &count, count - 1,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* R4. Returns -1 for a signal, 0 for anything else: EAGAIN, a wake, a timeout. */
static int sleep_on_one(ring_reader *r, uint32_t sampled, int64_t until_ns)
{
    struct timespec timeout = timespec_of(until_ns - ring_monotonic_ns());
    long result = syscall(SYS_futex, &r->control->notify_seq, FUTEX_WAIT, sampled, &timeout, NULL, 0);
    return result != 0 && errno == EINTR ? -1 : 0;
}

static int nap(int64_t ns)
{
    struct timespec duration = timespec_of(ns);
    return nanosleep(&duration, NULL) != 0 && errno == EINTR ? -1 : 0;
}

static int sleep_on_many(ring_reader **readers, size_t count, const uint32_t *sampled, int64_t until_ns)
{
    struct waitv_entry entries[RING_WAITV_MAX];
    for (size_t i = 0; i < count; i++)
        entries[i] = (struct waitv_entry){
            .value = sampled[i],
            .address = (uint64_t)(uintptr_t)&readers[i]->control->notify_seq,
            .flags = WAITV_SIZE_U32,
        };
    struct timespec until = timespec_of(until_ns); /* absolute, on the monotonic clock */
    long result = syscall(SYS_futex_waitv, entries, (unsigned)count, 0, &until, CLOCK_MONOTONIC);
    if (result < 0 && errno == EINTR)
        return -1;
    if (result < 0 && errno == ENOSYS)
        return nap(FALLBACK_SLEEP_NS);
    return 0;
}

static int park(ring_reader **readers, size_t count, int64_t until_ns)
{
    uint32_t sampled[RING_WAITV_MAX];
    uint64_t epochs[RING_WAITV_MAX];
    int interrupted = 0;
    for (size_t i = 0; i < count; i++)
        epochs[i] = enter_waiting(readers[i]);
    for (size_t i = 0; i < count; i++) /* R2, before R3 */
        sampled[i] = atomic_load_explicit(&readers[i]->control->notify_seq, memory_order_acquire);
    if (!any_ready(readers, count))
        interrupted = count == 1 ? sleep_on_one(readers[0], sampled[0], until_ns)
                                 : sleep_on_many(readers, count, sampled, until_ns);
    for (size_t i = 0; i < count; i++)
        leave_waiting(readers[i], epochs[i]);
    return interrupted;
}

int ring_wait_any(ring_reader **readers, size_t count, const ring_wait_strategy *strategy, int64_t timeout_ns)
{
    int64_t now_ns = ring_monotonic_ns();
    int64_t until_ns = now_ns + (timeout_ns < RING_WAIT_SLICE_NS ? timeout_ns : RING_WAIT_SLICE_NS);
    if (any_ready(readers, count))
        return 1;
    if (strategy->kind == RING_BUSY_SPIN)
        return spin(readers, count, until_ns);
    int64_t spin_until_ns = now_ns + strategy->spin_ns;
    if (strategy->kind == RING_SPIN_THEN_PARK && strategy->spin_ns > 0 &&
        spin(readers, count, spin_until_ns < until_ns ? spin_until_ns : until_ns))
        return 1;
    int can_park = strategy->kind == RING_SPIN_THEN_PARK && count <= RING_WAITV_MAX;
    int64_t nap_ns = strategy->kind == RING_SLEEP ? strategy->sleep_ns : FALLBACK_SLEEP_NS;
    while ((now_ns = ring_monotonic_ns()) < until_ns) {
        int64_t rest_ns = until_ns - now_ns;
        int interrupted =
            can_park ? park(readers, count, until_ns) : nap(nap_ns < rest_ns ? nap_ns : rest_ns);
        if (any_ready(readers, count))
            return 1;
        if (interrupted)
            return -1;
    }
    return 0;
}

int ring_wait(ring_reader *r, const ring_wait_strategy *strategy, int64_t timeout_ns)
{
    return ring_wait_any(&r, 1, strategy, timeout_ns);
}
