/* Preloaded into a process: its wall clock is off by the seconds that the file $WALL_CLOCK_OFFSET holds now. The
 * monotonic clock and everything that waits stay as they are, as when somebody sets a machine's clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long offset(void)
{
    char text[32] = {0};
    int file = open(getenv("WALL_CLOCK_OFFSET"), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0)
            text[0] = 0;
        close(file);
    }
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (status == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += offset();
    return status;
}
