#include "event_loop.h"
#include "link.h"
#include "packet_log.h"
#include "parameters.h"
#include "readiness.h"
#include "serve.h"
#include "stop_signal.h"
#include "truth.h"
#include "user_error.h"

#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace bentpipe
{

namespace
{

void
Run(const Parameters& parameters)
{
    PrepareScheduling();
    StopSignal stop_signal;
    TruthFile truth_file(parameters.truth_path);
    std::unique_ptr<PacketLog> log;
    if (!parameters.packets_path.empty())
    {
        log = std::make_unique<PacketLog>(parameters.packets_path);
    }
    Readiness readiness(parameters.ready_port);
    const auto loop = EventLoop::Install();
    Link link(loop, parameters, log.get());
    stop_signal.Watch(*loop, [&link] { link.RequestStop(); });
    link.Run([&] { readiness.Open(*loop); });
    if (log != nullptr && !log->Close())
    {
        throw std::runtime_error("The packet log '" + parameters.packets_path + "' could not be written to its end.");
    }
    truth_file.Commit(link.Summary());
}

int
RunLink(const std::string& document)
{
    Run(ParseParameters(document));
    return 0;
}

/// The document of an argument. It is the argument, or the file after `@`: Linux limits an argument to 128 KiB.
std::string
ReadDocument(const std::string& argument)
{
    if (argument.rfind('@', 0) != 0)
    {
        return argument;
    }
    std::ifstream file(argument.substr(1));
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file)
    {
        throw UserError("The file '" + argument.substr(1) + "' can't be read.");
    }
    return text;
}

/// The exit code of `run`. An exception of `run` becomes one sentence and an exit code.
int
ExitCode(const std::function<int()>& run)
{
    try
    {
        return run();
    }
    catch (const UserError& error)
    {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 2;
    }
    catch (const std::exception& error)
    {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}

int
Main(const std::vector<std::string>& arguments)
{
    return ExitCode([&arguments] {
        if (arguments.size() != 1)
        {
            throw UserError("Give one argument: a JSON document, @FILE, --serve or --help.");
        }
        if (arguments[0] == "--help")
        {
            std::fputs(UsageText().c_str(), stdout);
            return 0;
        }
        if (arguments[0] == "--serve")
        {
            Serve([](const std::string& document) { return ExitCode([&document] { return RunLink(document); }); });
            return 0;
        }
        return RunLink(ReadDocument(arguments[0]));
    });
}

}  // namespace

}  // namespace bentpipe

int
main(int argc, char** argv)
{
    return bentpipe::Main({argv + 1, argv + argc});
}
