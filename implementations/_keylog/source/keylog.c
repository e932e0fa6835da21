/*
 * An LD_PRELOAD library that writes the key log of programs that use OpenSSL's libssl and write none themselves.
 *
 * Debian builds libssl without SSLKEYLOGFILE. This library sets the key log callback of every SSL_CTX, appends each line to
 * $SSLKEYLOGFILE, and then calls the program's own callback: nginx and HAProxy get their QUIC secrets through this
 * callback.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef SSL_CTX *(*new_function)(const SSL_METHOD *);
typedef SSL_CTX *(*new_ex_function)(OSSL_LIB_CTX *, const char *, const SSL_METHOD *);
typedef void (*set_function)(SSL_CTX *, SSL_CTX_keylog_cb_func);

static int file = -1;
static int callback_index = -1; /* of the program's own callback, kept with its SSL_CTX */

/* The file is opened before main(), while the process is still root. nginx's workers inherit the descriptor. */
__attribute__((constructor)) static void open_file(void)
{
    const char *path = getenv("SSLKEYLOGFILE");

    if (path != NULL && *path != '\0')
        file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    callback_index = CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL_CTX, 0, NULL, NULL, NULL, NULL);
}

static void log_line(const SSL *ssl, const char *line)
{
    SSL_CTX_keylog_cb_func next = (SSL_CTX_keylog_cb_func)SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), callback_index);

    /* One write() per line, so that processes that share the file don't mix their lines. */
    if (file >= 0 && dprintf(file, "%s\n", line) < 0)
        perror("keylog");
    if (next != NULL)
        next(ssl, line);
}

static SSL_CTX *watch(SSL_CTX *context)
{
    set_function set = (set_function)dlsym(RTLD_NEXT, "SSL_CTX_set_keylog_callback");

    if (context != NULL)
        set(context, log_line);
    return context;
}

SSL_CTX *SSL_CTX_new(const SSL_METHOD *method)
{
    return watch(((new_function)dlsym(RTLD_NEXT, "SSL_CTX_new"))(method));
}

SSL_CTX *SSL_CTX_new_ex(OSSL_LIB_CTX *library, const char *properties, const SSL_METHOD *method)
{
    return watch(((new_ex_function)dlsym(RTLD_NEXT, "SSL_CTX_new_ex"))(library, properties, method));
}

void SSL_CTX_set_keylog_callback(SSL_CTX *context, SSL_CTX_keylog_cb_func callback)
{
    SSL_CTX_set_ex_data(context, callback_index, (void *)callback);
    watch(context);
}
