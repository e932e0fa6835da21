#include "serve.h"

#include "user_error.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace bentpipe
{

namespace
{

constexpr int kSignalled = 128;  // like a shell: the exit code of a process that a signal ended is 128 plus the signal number

std::system_error
LastError(const std::string& what)
{
    return std::system_error(errno, std::generic_category(), what);
}

class Server
{
  public:
    explicit Server(std::function<int(const std::string&)> run)
        : run_(std::move(run))
    {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGCHLD);
        pthread_sigmask(SIG_BLOCK, &set, &inherited_);
        signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        if (signals_ < 0)
        {
            throw LastError("signalfd");
        }
    }

    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    ~Server()
    {
        close(signals_);
    }

    void Run()
    {
        while (!ending_ || child_)
        {
            pollfd sources[] = {{signals_, POLLIN, 0}, {ending_ ? -1 : STDIN_FILENO, POLLIN, 0}};
            if (poll(sources, 2, -1) < 0 && errno != EINTR)
            {
                throw LastError("poll");
            }
            if (sources[0].revents != 0)
            {
                TakeSignals();
            }
            if (sources[1].revents != 0)
            {
                ReadLines();
            }
        }
    }

  private:
    void TakeSignals()
    {
        signalfd_siginfo signal;
        while (read(signals_, &signal, sizeof(signal)) == sizeof(signal))
        {
            if (signal.ssi_signo == SIGCHLD)
            {
                Reap();
            }
            else
            {
                End();
            }
        }
    }

    void ReadLines()
    {
        char buffer[4096];
        const ssize_t length = read(STDIN_FILENO, buffer, sizeof(buffer));
        if (length < 0)
        {
            throw LastError("read");
        }
        if (length == 0)
        {
            End();
        }
        pending_.append(buffer, static_cast<size_t>(length));
        for (size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n'))
        {
            const std::string line = pending_.substr(0, end);
            pending_.erase(0, end + 1);
            Obey(line);
        }
    }

    void Obey(const std::string& line)
    {
        if (line == "stop")
        {
            Stop();
            return;
        }
        if (child_)
        {
            throw UserError("A link runs already; stop it first.");
        }
        Start(line);
    }

    void Start(const std::string& document)
    {
        const pid_t child = fork();
        if (child < 0)
        {
            throw LastError("fork");
        }
        if (child == 0)
        {
            close(signals_);
            pthread_sigmask(SIG_SETMASK, &inherited_, nullptr);
            const int code = run_(document);
            std::fflush(nullptr);
            _exit(code);
        }
        child_ = child;
    }

    void Reap()
    {
        int status = 0;
        if (child_ && waitpid(*child_, &status, WNOHANG) == *child_)
        {
            child_.reset();
            const int code = WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
            std::fprintf(stderr, "link ended with %d\n", code);
        }
    }

    void Stop()
    {
        if (child_)
        {
            kill(*child_, SIGTERM);
        }
    }

    void End()
    {
        ending_ = true;
        Stop();
    }

    std::function<int(const std::string&)> run_;
    sigset_t inherited_{};
    int signals_ = -1;
    std::optional<pid_t> child_;
    std::string pending_;
    bool ending_ = false;
};

}  // namespace

void
Serve(const std::function<int(const std::string&)>& run)
{
    Server(run).Run();
}

}  // namespace bentpipe
