/* Asks a server on this host again and again, and works a little on each answer: fetch TRUTH PORT TURNS
 * It waits in epoll until all of an answer is there: 200 bytes. "waited_s": how long it did so, of "seconds".
 */
#include "wl.h"
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { ANSWER = 200, REQUEST = 16 };

int main(int argc, char **argv)
{
    if (argc < 4)
        return 98;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int sock = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    if (sock < 0 || poll < 0 || connect(sock, (struct sockaddr *)&to, sizeof to))
        die("connect");
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, sock, &event))
        die("epoll_ctl");
    gate_begin();
    double begin = now_s(), waited = 0;
    for (int turn = 0; turn < atoi(argv[3]); turn++) {
        char buffer[ANSWER] = {0};
        if (write(sock, buffer, REQUEST) != REQUEST)
            die("request");
        for (ssize_t got = 0; got < ANSWER;) {
            double from = now_s();
            if (epoll_wait(poll, &event, 1, -1) < 0 && errno != EINTR)
                die("epoll_wait");
            waited += now_s() - from;
            ssize_t n = read(sock, buffer, sizeof buffer);
            if (n <= 0)
                die("answer");
            got += n;
        }
        for (double until = thread_cpu_s() + 0.004; thread_cpu_s() < until;) {
        }
    }
    double seconds = now_s() - begin;
    gate_end();
    truth_begin();
    truth_num("seconds", seconds);
    truth_num("waited_s", waited);
    truth_end(argv[1]);
    return 0;
}
