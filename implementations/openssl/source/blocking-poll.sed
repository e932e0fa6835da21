# Upstream's client calls SSL_poll() in a loop without waiting: this takes a CPU from the emulated link, and never ends when the
# connection is lost. Here each call waits up to a second, and the client fails when the connection is closed.
s/poll_timeout\.tv_sec = 0;/poll_timeout.tv_sec = 1;/
/Iterate over our poll array looking for ready SSL/i\
        if (result_count == 0\
            && SSL_get_conn_close_info(ssl, &(SSL_CONN_CLOSE_INFO) { 0 }, sizeof(SSL_CONN_CLOSE_INFO))) {\
            fprintf(stderr, "Connection closed before the files were whole\\n");\
            goto end;\
        }
