/* Shifts the wall clock of processes that load it by as many seconds as the file $CLOCK_SHIFT_FILE says, at any time:
 *     cc -shared -fPIC -O2 -o clock_shift.so clock_shift.c -ldl     LD_PRELOAD=clock_shift.so CLOCK_SHIFT_FILE=...
 * The monotonic clock stays, as it does when a machine's clock is set. Deadlines on the wall clock are given to the
 * kernel in its own time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const char *shift_text;

__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("CLOCK_SHIFT_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *text = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0); /* written as 15 digits and signs, padded */
    close(file);
    if (text != MAP_FAILED) shift_text = text;
}

static long shift_s(void) { return shift_text ? atol((const char *)shift_text) : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* A deadline on the wall clock lies near the shifted time; one on the monotonic clock is left alone. */
static const struct timespec *unshifted(const struct timespec *until, struct timespec *room) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    if (labs(until->tv_sec - now.tv_sec) > 100L * 365 * 86400 || until->tv_sec < now.tv_sec / 2) return until;
    *room = *until;
    room->tv_sec -= shift_s();
    return room;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec room;
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return real(condition, mutex, unshifted(until, &room));
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec room;
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(semaphore, unshifted(until, &room));
}
