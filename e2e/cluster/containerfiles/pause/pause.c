/* Holds a pod's namespaces: sleeps until told to end, and reaps the orphans that it is handed as process 1. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sign) {
  (void)sign;
  _exit(0);
}

static void reap(int sign) {
  (void)sign;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  for (;;) {
    pause();
  }
}
